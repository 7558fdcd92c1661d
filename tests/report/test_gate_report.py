"""The gate's answer in every form: the same figures, nothing lost, nothing that breaks a format."""

import json
from xml.etree import ElementTree

import pytest

from optcli.gate import comparisons
from optcli.gate.rule import decide, planned
from optcli.report import gate, terminal
from optcli.report.gate import COLUMNS, rows
from optcli.report.markdown_text import markdown
from optcli.results import Estimate, RecipeSummary, Verdict, flags
from optcli.results.gate import Change, Comparison, GatedVariant, GateReport, OperatorGrowth, worst
from optcli.settings.gate import GateBar, GateSettings

BAR = GateBar(limit=0.05)
RULE = planned(BAR, GateSettings(), 1)


def p50(ratios, bar=BAR):
    return comparisons.latency("p50", 1, 1.0, 1.07, decide(ratios, RULE), RULE, bar)


def made(*found, name="onnx | int8", causes=(), operators=(), flags=()):
    variant = GatedVariant(
        runner="onnxruntime", comparisons=found, causes=causes, operators=operators, flags=flags
    )
    return GateReport(
        recipe=RecipeSummary(name="flow_ers", path="recipes/a,b.yaml", digest="d"),
        baseline="git:main (0123456789)",
        outcome=variant.outcome,
        sentence="onnx: p50 7 % slower.",
        exit_code=1,
        variants={name: variant},
        environment={},
        baseline_environment={},
        started="2026-01-01T00:00:00+00:00",
        finished="2026-01-01T00:00:12+00:00",
    )


SLOWER, SAME, FASTER = [0.068, 0.07, 0.066, 0.069, 0.067, 0.071, 0.065, 0.072], [0.001] * 8, [-0.1] * 8
WILD = [0.3, -0.3, 0.2, -0.25, 0.4, -0.1, 0.35, -0.4] * 3
FAILED = made(
    p50(SLOWER),
    comparisons.plain("size", "size", "bytes", 1_000_000, 1_020_000, 0.05),
    causes=("opset 17, now 18",),
    operators=(OperatorGrowth(operator="Conv", baseline_ms=0.5, candidate_ms=0.57),),
    flags=(flags.rounds_not_counted(3, 8),),
)


ADVICE = GateBar(limit=0.05, undecided="advice")
CREEPING = [0.03 + x / 1000 for x in range(-4, 4)]


@pytest.mark.parametrize(
    ("found", "outcome", "blocking", "says"),
    [
        (p50(SLOWER), "reject", True, "in 8 launch pairs: more than the limit of 5 %"),
        (p50(CREEPING), "reject", True, "more than the 2 % that building again explains"),
        (p50(SAME), "accept", True, "within the limit of 5 %"),
        (p50(FASTER), "accept", True, "improved: 9.5 % faster"),
        (p50(WILD), "inconclusive", True, "cannot tell in 24 launch pairs"),
        (p50(WILD, ADVICE), "inconclusive", False, "cannot tell"),
    ],
)
def test_latencies_say_what_was_decided(found, outcome, blocking, says):
    assert (found.outcome, found.blocking) == (outcome, blocking)
    assert says in found.reason
    assert found.improved == found.reason.startswith("improved")


def test_growth_too_little_to_count_is_told_by_its_limit():
    memory = comparisons.plain("memory", "peak memory", "bytes", 38e6, 43e6, 0.1, slack=8_000_000)
    (row,) = rows(made(memory))
    cells = {column.name: column.text(row) for column in COLUMNS}
    assert memory.outcome == "accept"
    assert (cells["change"], cells["limit"]) == ("+13.2 %", "+10 % and 8.00 MB")


def test_figures_without_noise_are_plain():
    def size(before, now, limit=0.05):
        return comparisons.plain("size", "size", "bytes", before, now, limit)

    assert (size(100, 106).outcome, size(100, 106).reason) == (
        "reject", "6 % larger, over the limit of 5 %",
    )  # fmt: skip
    assert size(100, 105).outcome == "accept"
    assert size(100, 80).improved
    assert size(0, 10).outcome == "reject"
    p99 = comparisons.reported("p99", 8, 2.0, 3.0)
    assert (p99.blocking, p99.reason) == (False, "50 % slower; reported, not judged")


def test_verdicts_of_other_rooms_are_taken_over():
    verdict = Verdict(
        name="accuracy", outcome="reject", blocking=True, limit=0.01, actual=0.03,
        interval=(0.02, 0.04), reason="top1 97 %, over the 1.00 points allowed",
    )  # fmt: skip
    found = comparisons.judged("accuracy", "fraction", verdict, baseline=1.0, candidate=0.97)
    assert (found.outcome, found.limit, found.change) == (
        "reject", 0.01, Estimate(value=0.03, low=0.02, high=0.04),
    )  # fmt: skip
    row = terminal.text(gate.document(made(found)))
    assert "-3.00 points [-4.0, -2.0]" in row
    assert "100.00 %" in row
    assert "97.00 %" in row


def test_the_worst_decides():
    assert worst([]) == "accept"
    assert worst(["accept", "inconclusive"]) == "inconclusive"
    assert worst(["inconclusive", "reject", "accept"]) == "reject"
    advice = p50(WILD, ADVICE)
    assert made(advice, p50(SAME)).outcome == "accept"


def test_the_terminal_shows_figures_reasons_and_the_answer():
    shown = terminal.text(gate.document(FAILED))
    for part in ("1.07 ms", "+5 %", "FAIL", "Why onnx | int8", "opset 17, now 18", "Conv: 0.500 ms"):
        assert part in shown
    assert "not counted: 3 of 8 rounds" in shown
    assert "onnx: p50 7 % slower." in shown
    assert max(map(len, terminal.text(gate.document(FAILED), width=80).splitlines())) <= 80


def test_markdown_is_a_sound_table():
    shown = markdown(gate.document(FAILED))
    lines = [line for line in shown.splitlines() if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in lines} == {8}
    assert "**FAIL**" in shown
    assert "flow\\_ers" in shown
    assert "Why onnx \\| int8:" in shown
    assert shown.startswith(markdown(gate.document(made(p50(SAME)))).splitlines()[0])


def test_the_comment_says_why_a_variant_is_judged_in_sound_markdown():
    report = made(p50(SAME), name="onnx_int8")
    variant = report.variants["onnx_int8"].model_copy(update={"chosen": ("recommended", "marked")})
    shown = markdown(gate.document(report.model_copy(update={"variants": {"onnx_int8": variant}})))
    assert shown.splitlines()[-1] == (
        "_Compared with git:main (0123456789). Judged: onnx\\_int8"
        " (recommended by the candidate's build and marked gate: true). Took 12 s._"
    )


def test_a_setting_is_written_as_people_write_it():
    change = Change(
        kind="preparation", place="data.evaluation.prepare.scale", before=1 / 255, after=1 / 2550
    )
    assert gate.change_in_words(change) == "data.evaluation.prepare.scale 1/255, now 1/2550"
    assert gate.change_in_words(
        change.model_copy(update={"before": 0.485, "after": [0.1, 1 / 3]})
    ).endswith(" 0.485, now 0.1, 1/3")
    for value in (0.30000000000000004, 1234567.8901234, 1e-300):
        assert gate.change_in_words(change.model_copy(update={"after": value})).endswith(f"now {value}")


def test_junit_has_a_case_for_every_figure():
    advice = p50(WILD, ADVICE)
    report = made(p50(SLOWER), p50(SAME), p50(WILD), advice, name="a\x00<&>")
    root = ElementTree.fromstring(gate.junit(report))
    suite = root.find("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("4", "1", "2")
    failure = suite.find("testcase/failure")
    assert "slower" in failure.get("message")
    assert "limit 0.05" in failure.text
    assert suite.find("testcase").get("classname") == "flow_ers.a?<&>"


def test_annotations_are_one_per_figure_and_escaped():
    advice = p50(WILD, ADVICE)
    found = list(gate.github_annotations(made(p50(SLOWER), p50(SAME), p50(WILD), advice)))
    assert len(found) == 2
    assert found[0].startswith(
        "::error file=recipes/a%2Cb.yaml,title=optcli gate%3A onnx | int8 p50 FAIL::"
    )
    assert "%25 slower" in found[0]
    assert found[1].startswith("::warning ")


def test_gitlab_and_benchmark_action_get_every_figure():
    lines = gate.gitlab_metrics(FAILED).splitlines()
    assert 'optcli_p50_ms{variant="onnx | int8",figure="p50",batch_size="1"} 1.07' in lines
    assert 'optcli_size_bytes{variant="onnx | int8",figure="size"} 1020000' in lines
    assert lines[-1] == "# EOF"
    found = json.loads(gate.benchmark_json(FAILED))
    assert [(each["name"], each["unit"], each["value"]) for each in found] == [
        ("onnx | int8 p50, batch 1", "ms", 1.07),
        ("onnx | int8 size", "bytes", 1020000),
    ]


def test_json_comes_back():
    assert GateReport.model_validate_json(FAILED.to_json()) == FAILED
    assert json.loads(FAILED.to_json())["schema"] == 2


def test_a_comparison_without_figures_can_be_shown():
    new = Comparison(
        metric="p50", name="p50", unit="ms", outcome="accept", blocking=False,
        reason="new: nothing to compare with",
    )  # fmt: skip
    report = made(new)
    assert "reported" in terminal.text(gate.document(report))
    assert json.loads(gate.benchmark_json(report)) == []


def test_places_that_read_the_same_files_are_told_once():
    def change(place, *files):
        return Change(kind="untracked-data", place=place, unversioned="outside", files=files)

    raw = [f"/data/raw/{name}" for name in "abcd"]
    found = gate.changes_in_words(
        [
            change("data.calibration", *raw),
            change("data.evaluation", *raw),
            change("data.training", raw[0], "/other/b"),
            Change(kind="bar", place="accuracy.max_drop", before=0.01, after=0.05),
        ]
    )
    why = "which lies outside of the repository: compare with a saved build (`optcli baseline save`)"
    assert found == [
        f"data.calibration and data.evaluation: both sides read today's 4 files of /data/raw, {why}",
        f"data.training: both sides read today's /data/raw/a, /other/b, {why}",
        "accuracy.max_drop 0.01, now 0.05",
    ]


def test_the_terminal_colours_verdicts_and_names_a_variant_once():
    from io import StringIO

    from rich.console import Console

    advice = p50(WILD, ADVICE).model_copy(update={"outcome": "reject"})
    both = made(p50(SLOWER), advice, p50(SAME), name="onnx-int8")
    console = Console(file=StringIO(), force_terminal=True, width=120)
    console.print(terminal.renderable(gate.document(both)))
    shown = console.file.getvalue()
    assert "\x1b[31mFAIL" in shown
    assert "\x1b[33mfail (advice)" in shown
    assert "\x1b[32mpass" in shown
    plain = terminal.text(gate.document(both)).splitlines()
    assert sum(line.startswith("onnx-int8 ") for line in plain) == 1
    heads = next(line for line in plain if line.startswith("variant"))
    cells = next(line for line in plain if line.startswith("onnx-int8 "))
    assert heads.index("figure") == cells.index("p50")
    assert heads.index("limit") + len("limit") == cells.index("+5 %") + len("+5 %")


def test_markdown_has_failures_in_bold_and_figures_at_the_right():
    lines = markdown(gate.document(FAILED)).splitlines()
    assert "| --- | --- | ---: | ---: | ---: | ---: | --- |" in lines
    assert any(line.endswith("| **FAIL** |") for line in lines)
    assert any(line.endswith("| pass |") for line in lines)


def test_a_rejection_that_does_not_block_fails_no_test_of_a_ci_system():
    advice = p50(WILD, ADVICE).model_copy(update={"outcome": "reject"})
    terms = (
        Change(kind="bar", place="a", before=1, after=2),
        Change(kind="bar", place="b", tighter=True),
    )
    (suite,) = ElementTree.fromstring(gate.junit(made(advice).model_copy(update={"changes": terms})))
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "0", "1")
    assert [child.tag for case in suite for child in case] == ["system-out", "skipped", "system-out"]
