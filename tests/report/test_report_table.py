from pathlib import Path

import pytest
from example import NOW, accuracy, both, latency, report, variant, verdict
from report_forms import markdown, text

from optcli.report import terminal
from optcli.report.build import document
from optcli.results import Estimate, OutputError, StepSummary, VariantReport, flags

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize(("name", "width"), [("80", 80), ("100", 100), ("pipe", None)])
def test_golden_text(name, width):
    assert text(report(), width) == (GOLDEN / f"{name}.txt").read_text()


def test_golden_markdown():
    assert markdown(report()) == (GOLDEN / "report.md").read_text()


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_no_line_is_wider_than_the_terminal_and_no_figure_is_broken(width):
    long = {
        "mobilenet-v3-large-baseline": variant(2e9, both(2012.3, 1), accuracy(), runtime="torch"),
        "a-variant-with-a-rather-long-name": variant(
            2e8,
            both(1234.5, 1.63),
            accuracy(14, 2),
            [verdict("accuracy", "reject"), verdict("slo p99_ms", "reject")],
            precision="int8+fp32",
        ),
    }
    shown = text(report(long, baseline="mobilenet-v3-large-baseline"), width)
    lines = shown.splitlines()
    assert max(len(line) for line in lines) <= width
    p50, p99 = ("1234 ±2 %", "1852 ±2 %") if width <= 100 else ("[1210, 1259]", "[1815, 1889]")
    for figure in (p50, p99, "95.56 %", "2.00 GB"):
        assert any(figure in line for line in lines), figure


@pytest.mark.slow
def test_for_a_pipe_every_variant_and_note_is_one_plain_line():
    lines = text(report()).splitlines()
    assert "\x1b" not in text(report())
    assert len([line for line in lines if line.startswith("onnx-int8 ")]) == 2
    assert not any(line.endswith(" ") for line in lines)
    assert any(line.startswith("  pruned-onnx: accuracy rejected: top1 95.56 %") for line in lines)


def test_a_terminal_gets_colours():
    from io import StringIO

    from rich.console import Console

    console = Console(file=StringIO(), force_terminal=True, width=100)
    console.print(terminal.renderable(document(report())))
    assert "\x1b[31mreject: accuracy" in console.file.getvalue()


def test_names_are_bold_verdicts_coloured_and_what_stands_below_is_dim():
    from io import StringIO

    from rich.console import Console

    console = Console(file=StringIO(), force_terminal=True, width=100)
    console.print(terminal.renderable(document(report())))
    shown = console.file.getvalue()
    assert "\x1b[1meager\x1b[0m" in shown
    assert "\x1b[2mtorch" in shown
    assert "\x1b[32mbaseline" in shown
    assert "\x1b[33mno clear gain over onnx" in shown


@pytest.mark.parametrize("width", [None, 160, 80])
def test_a_bound_that_says_nothing_is_no_number(width):
    row = latency(2.314, 1)
    wide = Estimate(value=2.314, low=0.1, high=2.314 * 9.24)
    row = row.model_copy(update={"p95_ms": wide})
    found = report({"eager": variant(1000, [row])})
    shown = text(found, width)
    assert "unsure" in shown
    assert "824 %" not in shown
    assert "21.4" not in shown
    assert "2.31 [" in shown or "2.31 ±2 %" in shown  # the median is known
    assert '"high":21.38' in found.to_json().replace(" ", "").replace("\n", "")


def test_names_in_brackets_are_not_markup():
    found = report({"[red]eager": variant(1000, [latency(1, 1)])}, baseline="[red]eager")
    assert "[red]eager" in text(found)
    assert "a\\|b" in markdown(report({"a|b": variant(1000, [latency(1, 1)])}, baseline="a|b"))


def test_without_labels_the_distance_of_the_outputs_is_shown():
    def unlabelled(**figures):
        error = OutputError(finite=True, constant=False, **figures)
        return accuracy().model_copy(
            update={"metric": None, "value": None, "drop": None, "output_error": error}
        )

    shown = text(
        report(
            {
                "eager": variant(1000, [latency(2, 1)], unlabelled(max_abs=0.0)),
                "same": variant(1000, [latency(1, 2)], unlabelled(max_abs=0.0)),
                "int8": variant(500, [latency(1, 2)], unlabelled(max_abs=0.3, sqnr_db=31.25)),
            }
        )
    )
    eager, same, int8 = (
        next(line for line in shown.splitlines() if line.startswith(name))
        for name in ("eager", "same", "int8")
    )
    assert "SQNR" in shown
    assert "top-1" not in shown
    assert "reference" in eager
    assert "equal" in same
    assert "31.2 dB" in int8
    assert "Outputs were compared with eager's on the same 360 samples." in shown


def test_without_any_measurement_the_artifacts_are_still_listed():
    shown = text(
        report({"eager": variant(1000, [], reason="not measured here: no NVIDIA GPU was found")})
    )
    assert "eager    onnxruntime  fp32       1.00 kB" in shown
    # Columns in which nothing could stand are left out.
    assert "p50" not in shown
    assert "n/a" not in shown
    assert "not measured here" in shown
    assert "Latency:" not in shown
    nothing = text(report({"eager": VariantReport(status="failed", reason="no weights")}))
    assert "eager failed: no weights" in nothing


def test_outputs_that_nobody_compared_are_said():
    blind = {"eager": variant(1000, [latency(2, 1)]), "onnx": variant(1000, [latency(1, 2)])}
    assert "Outputs were not compared: the recipe names no data: evaluation." in text(report(blind))
    assert "not compared" not in text(report())


def test_reused_latency_shows_its_age():
    old = {"eager": variant(1000, [latency(1, 1, at="2026-02-27T11:00:00+00:00")])}
    assert "Latency was measured 2 days before this build and reused." in text(report(old))
    assert "reused" not in text(report({"eager": variant(1000, [latency(1, 1, at=NOW)])}))


def test_a_step_that_variants_share_fails_in_one_sentence():
    lost = {name: variant(0, [], status="failed", reason="export_onnx: no") for name in ("a", "b")}
    other = variant(0, [], status="failed", reason="no room")
    shown = text(report({"eager": variant(1000, [latency(1, 1)]), **lost, "c": other}))
    assert shown.count("export_onnx: no") == 1
    assert "a and b failed: export_onnx: no" in shown
    assert "c failed: no room" in shown


def test_a_variant_whose_measurement_failed_is_in_the_table_as_failed():
    broken = variant(1000, [], status="failed", reason="measuring failed: it aborted", log="broken.log")
    shown = text(report({"eager": variant(1000, [latency(1, 1)]), "broken": broken}))
    assert "broken failed: measuring failed: it aborted (log: broken.log)" in shown
    assert next(line for line in shown.splitlines() if line.startswith("broken ")).endswith("failed")


@pytest.mark.parametrize(
    ("verdicts", "words"),
    [
        ([], "accept"),
        ([("accuracy", "reject", True), ("slo p99_ms", "inconclusive", True)], "reject: accuracy"),
        ([("slo p99_ms", "inconclusive", True)], "inconclusive: slo p99_ms"),
        ([("speed-up", "reject", False)], "does not pay"),
        ([("speed-up", "inconclusive", False)], "no clear gain"),
        ([("speed-up", "inconclusive", False, "it broke", None)], "not compared"),
        (
            [("speed-up", "reject", False), ("outputs", "inconclusive", False)],
            "outputs far off",
        ),
        (
            [("speed-up", "inconclusive", False), ("speed-up over onnx", "reject", False)],
            "slower than onnx",
        ),
        ([("speed-up over onnx", "inconclusive", False)], "no clear gain over onnx"),
    ],
)
def test_verdicts_in_few_words(verdicts, words):
    judged = [verdict(*each) for each in verdicts]
    shown = text(report({"v": variant(1000, [latency(1, 2)], None, judged)}, baseline="none"))
    assert next(line for line in shown.splitlines() if line.startswith("v ")).endswith(f"  {words}")


def test_doubts_are_collected_by_kind():
    rows = {
        name: variant(
            1000,
            [latency(1, 1, flags=(flags.fluctuating(share), flags.time_cap(2, 8, 1, 1)))],
        )
        for name, share in (("a", 0.12), ("b", 0.15))
    }
    shown = text(report(rows, baseline="a"))
    assert "  fluctuating (the middle half of the calls spreads over 20 % of the median)" in shown
    assert "  time cap: 2 of 8 rounds: all" in shown


@pytest.mark.parametrize(("launches", "unit"), [(1, "round"), (5, "launch")])
def test_the_footer_says_what_intervals_are_over(launches, unit):
    made = report()
    shown = text(made.model_copy(update={"protocol": {**made.protocol, "launches": launches}}))
    assert f"paired {unit} by {unit}" in " ".join(shown.split())


def test_a_failed_step_names_the_command_that_repeats_it():
    step = StepSummary(
        name="prune", key="k", status="failed", repeat="python -m optcli.pipeline.step call.json OUT"
    )
    broken = variant(1000, [], status="failed", reason="it aborted").model_copy(
        update={"steps": (step,)}
    )
    shown = text(report({"eager": variant(1000, [latency(1, 1)]), "broken": broken}))
    assert "repeat it: python -m optcli.pipeline.step call.json OUT" in shown


def disturbed():
    rows = [row.model_copy(update={"fit": False, "speedup": None}) for row in both(1.5, 2)]
    found = report().variants
    reason = "the measurement cannot tell: other work disturbed the times of this variant"
    judged = [verdict("speed-up", "inconclusive", blocking=False, reason=reason, actual=None)]
    return report(
        {**found, "one": variant(1000, rows, None, judged), "two": variant(1000, rows, None, judged)}
    )


@pytest.mark.parametrize("width", [80, 100, 120, 160, None])
def test_disturbed_times_have_no_interval(width):
    lines = text(disturbed(), width).splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("one "))
    shown = lines[start : start + (1 if width is None else 3)]
    assert any("1.50 disturbed" in line for line in shown)
    assert not any("[" in line or "±" in line for line in shown[: 1 if width is None else 2])
    assert "disturbed" in markdown(disturbed())


def test_variants_of_one_reason_share_a_line():
    said = [line for line in text(disturbed()).splitlines() if "the measurement cannot tell" in line]
    assert said == [
        "  one and two: speed-up: the measurement cannot tell:"
        " other work disturbed the times of this variant"
    ]


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_every_figure_is_whole_with_all_columns(width):
    gained = verdict("speed-up over onnx", reason="2.19 times as fast as onnx", actual=2.19)
    found = report()
    int8 = found.variants["onnx-int8"].model_copy(update={"verdicts": (verdict("accuracy"), gained)})
    lines = text(report({**found.variants, "onnx-int8": int8}), width).splitlines()
    assert max(map(len, lines)) <= width
    for figure in ("vs fp32", "5.85x", "2.19x", "0.618", "accept, 2.19x over onnx"):
        assert any(figure in line for line in lines), figure
    spans = ("±2 %",) if width == 80 else ("[5.73, 5.97]", "[2.15, 2.23]", "[0.606, 0.631]")
    for span in spans:
        assert any(span in line for line in lines), span


def test_the_last_line_says_the_exit_code_and_why():
    assert text(report()).splitlines()[-1] == "exit 4: aoti failed"
    assert "exit" not in text(report(exit_reason="")).splitlines()[-1]
    assert "\n\nexit 4: aoti failed\n" in markdown(report())


def test_what_was_compiled_for_single_batch_sizes_is_told():
    def compiled(sizes, gains):
        runner = {"name": "openvino", "shapes": "static", "compiled_batch_sizes": sizes}
        runner |= {"static_gains": gains} if gains else {}
        return variant(900, [latency(1, 1)]).model_copy(update={"runner": runner})

    def package(compiled_for):
        runner = {"name": "aoti", "compiled_for": compiled_for}
        return variant(900, [latency(1, 1)]).model_copy(update={"runner": runner})

    shown = text(
        report(
            {
                "eager": variant(1000, [latency(1, 1)]),
                "chosen": compiled([1, 8], {"1": 1.312, "8": 1.07}),
                "asked": compiled([1, 8], None),
                "one": compiled([1], {"1": 1.1, "8": 0.9}),
                "hostile": compiled("8", {"1": []}),
                "aoti": package("batch size 1 and any other"),
                "other": package("batch size 1\n[link](http://elsewhere)"),
            }
        )
    )
    shown = " ".join(shown.split())
    chosen = "chosen (1.31 and 1.07 times as fast as one form for all)"
    assert f"Compiled for batch sizes 1 and 8 alone: {chosen} and asked." in shown
    assert "Compiled for batch size 1 alone: one (1.1 times as fast as one form for all)." in shown
    assert "Compiled for batch size 1 and any other: aoti." in shown
    assert "elsewhere" not in shown
    assert "hostile (" not in shown


@pytest.mark.parametrize(
    ("others", "says"),
    [
        ({"ov": "accept"}, "nncf: ov is int8 too, and inside the bar. `optcli tune"),
        (
            {"ov": "accept", "ort": "accept"},
            "nncf: ort and ov are int8 too, and inside the bar. `optcli",
        ),
        (
            {"ov": "reject"},
            "nncf: `optcli tune recipes/r.yaml --from nncf` looks for settings that keep",
        ),
    ],
)
def test_a_rejected_quantization_names_those_that_hold_and_the_repair(others, says):
    def quantized(outcome):
        return variant(
            1e6, both(1, 2), accuracy(9, 1), [verdict("accuracy", outcome)], precision="int8"
        )

    plain = variant(4e6, both(2, 1), accuracy(), runtime="torch")
    made = {name: quantized(outcome) for name, outcome in {"nncf": "reject", **others}.items()}
    shown = report({"eager": plain, **dict(sorted(made.items()))})
    shown = shown.model_copy(
        update={"recipe": shown.recipe.model_copy(update={"path": "recipes/r.yaml"})}
    )
    assert says in text(shown)
    loud = variant(1e6, both(1, 2), accuracy(9, 1), [verdict("accuracy", "reject")], precision="fp16")
    assert "optcli tune" not in text(report({"eager": plain, "half": loud}))
