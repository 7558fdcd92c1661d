"""What changed between two reports: matched, judged by intervals, refused where machines differ."""

from __future__ import annotations

import csv
import io
import json
import math
import random

import pytest
from example import accuracy, both, latency, report, variant
from test_html_report import HOSTILE, Parsed

from optcli.report import changes, html, terminal
from optcli.report.changes import comparing
from optcli.report.csv_text import csv_of_changes
from optcli.report.markdown_text import markdown
from optcli.results import Estimate

MACHINE = {
    "cpu": {"model": "EPYC", "flags": ["avx2"]},
    "cores": 2,
    "python": "3.11.7",
    "versions": {"torch": "2.9.0", "onnxruntime": "1.22.0"},
}


def built(variants, **environment):
    protocol = {"mode": "table", "launches": 5, "conditions": {"before": {"governor": "performance"}}}
    if "governor" in environment:
        protocol["conditions"] = {"before": {"governor": environment.pop("governor")}}
    return report(variants, environment={**MACHINE, **environment}, protocol=protocol)


def made(key, rows, right=None, size_bytes=1000, threads=2, runtime="onnxruntime"):
    found = variant(size_bytes, rows, right, runtime=runtime)
    return found.model_copy(
        update={
            "artifact": found.artifact.model_copy(update={"key": key}),
            "runner": {"name": runtime, "precision": "fp32", "requested": {"threads": threads}},
        }
    )


def compare(before, after):
    return changes.compare(("before", before), ("after", after))


def outcomes(comparison):
    return {each.name: [row.p50.outcome for row in each.latency] for each in comparison.variants}


def test_faster_slower_and_not_clear_by_intervals():
    before = built({name: made(f"{name}1", both(2, 1)) for name in ("a", "b", "c")})
    after = built(
        {
            "a": made("a2", both(1.5, 1)),
            "b": made("b2", both(2.6, 1)),
            "c": made("c2", both(2.02, 1)),
        }
    )
    found = compare(before, after)
    assert found.comparable
    assert outcomes(found) == {
        "a": ["faster", "faster"],
        "b": ["slower", "slower"],
        "c": ["no clear change", "no clear change"],
    }
    change = found.variants[0].latency[0].p50
    assert change.ratio.value == pytest.approx(0.75)
    assert change.ratio.low < 0.75 < change.ratio.high


def test_without_intervals_nothing_is_claimed():
    row = latency(2, 1).model_copy(update={"p50_ms": Estimate(value=2)})
    far = latency(9, 1).model_copy(update={"p50_ms": Estimate(value=9)})
    found = compare(built({"a": made("1", [row])}), built({"a": made("2", [far])}))
    assert outcomes(found) == {"a": ["not known"]}
    assert found.variants[0].latency[0].p50.ratio.value == pytest.approx(4.5)


def test_the_ratio_of_two_alike_is_root_two_wider():
    one = Estimate(value=2.0, low=2 / 1.1, high=2 * 1.1)
    found = comparing.ratio(one, one)
    assert found.value == 1
    assert found.high == pytest.approx(math.exp(math.sqrt(2) * math.log(1.1)))
    assert found.low == pytest.approx(1 / found.high)


def test_a_lopsided_interval_stays_so():
    before = Estimate(value=1.0, low=0.99, high=2.0)
    found = comparing.ratio(before, Estimate(value=1.0, low=0.99, high=1.01))
    assert found.low == pytest.approx(0.5, rel=0.01)
    assert found.high == pytest.approx(1.0142, rel=0.001)


def test_the_ratio_covers_what_it_says():
    draw = random.Random(7)
    covered, runs, truth = 0, 2000, 1.3

    def run(value, spread):
        at = value * math.exp(draw.gauss(0, spread))
        reach = math.exp(1.96 * spread)
        return Estimate(value=at, low=at / reach, high=at * reach)

    for _ in range(runs):
        found = comparing.ratio(run(1.0, 0.05), run(truth, 0.02))
        covered += found.low <= truth <= found.high
    assert 0.93 <= covered / runs <= 0.97


def test_newcombe_as_published():
    # Newcombe 1998, table II, example (a): 56/70 against 48/80, method 10: 0.0524 to 0.3339.
    found = comparing.share_difference(48 / 80, 80, 56 / 70, 70)
    assert (found.low, found.high) == (pytest.approx(0.0524, abs=1e-4), pytest.approx(0.3339, abs=1e-4))


def test_what_is_the_same_says_how_far_the_runs_lie_apart():
    before = built({"same": made("k", both(2, 1)), "new": made("n1", both(1, 2))})
    after = built({"same": made("k", both(2.4, 1)), "new": made("n2", both(1.15, 2))})
    found = compare(before, after)
    assert found.drift == {1: pytest.approx(1.2), 8: pytest.approx(1.2)}
    assert outcomes(found) == {"same": ["same artifact"] * 2, "new": ["no clear change"] * 2}
    assert any("(same) moved by up to 20 % at p50, batch size 1" in note for note in found.notes)
    worse = built({"same": made("k", both(2.4, 1)), "new": made("n2", both(1.5, 2))})
    assert outcomes(compare(before, worse))["new"] == ["slower"] * 2


def test_a_new_library_is_no_drift():
    before = built({"same": made("k", both(2, 1))})
    after = built({"same": made("k", both(2.4, 1))}, versions={"torch": "2.10.0"})
    found = compare(before, after)
    assert found.comparable
    assert found.changed == ("torch 2.9.0 → 2.10.0",)
    assert found.variants[0].same
    assert found.drift == {}
    assert outcomes(found) == {"same": ["same artifact"] * 2}
    (note,) = found.notes
    assert note.startswith("same: the same files in other versions of libraries.")


def with_p95(rows, factor):
    def moved(row):
        p95 = Estimate(**{key: value * factor for key, value in row.p95_ms.model_dump().items()})
        return row.model_copy(update={"p95_ms": p95})

    return [moved(row) for row in rows]


def test_each_percentile_has_a_drift_of_its_own():
    before = built({"same": made("k", both(2, 1)), "new": made("n1", both(1, 2))})
    after = built(
        {"same": made("k", with_p95(both(2, 1), 1.5)), "new": made("n2", with_p95(both(1.15, 2), 1.2))}
    )
    found = compare(before, after)
    assert found.drifts["p95"] == {1: pytest.approx(1.5), 8: pytest.approx(1.5)}
    assert found.drifts["p50"] == found.drift == {1: 1.0, 8: 1.0}
    new = found.variants[1].latency[0]
    assert (new.p50.outcome, new.p95.outcome) == ("slower", "no clear change")


def test_the_same_files_made_by_another_version_are_the_same_artifact():
    def of(key, digest, p50):
        found = made(key, both(p50, 1))
        artifact = found.artifact.model_copy(update={"digest": digest})
        return found.model_copy(update={"artifact": artifact})

    found = compare(built({"a": of("1", "d", 2)}), built({"a": of("2", "d", 1.6)}))
    assert outcomes(found) == {"a": ["same artifact"] * 2}
    found = compare(built({"a": of("1", "d", 2)}), built({"a": of("2", "e", 1.6)}))
    assert outcomes(found) == {"a": ["faster"] * 2}
    found = compare(built({"a": of("1", None, 2)}), built({"a": of("2", None, 1.6)}))
    assert outcomes(found) == {"a": ["faster"] * 2}


def test_disturbed_times_are_not_compared():
    calm, disturbed = latency(2, 1), latency(1, 1).model_copy(update={"fit": False})
    found = compare(built({"a": made("1", [calm])}), built({"a": made("2", [disturbed])}))
    change = found.variants[0].latency[0].p50
    assert (change.outcome, change.ratio, change.after.value) == ("not known", None, 1)
    assert (
        "There is no change of latency for a: on one side other work disturbed the times."
        in found.notes
    )
    assert found.drifts == {"p50": {}, "p95": {}, "p99": {}}


def test_names_first_then_artifacts():
    before = built(
        {"a": made("1", both(2, 1)), "old": made("2", both(1, 2)), "gone": made("3", both(1, 2))}
    )
    after = built(
        {"a": made("9", both(2, 1)), "fresh": made("2", both(1, 2)), "added": made("7", both(1, 2))}
    )
    found = compare(before, after)
    assert [(each.name_before, each.name) for each in found.variants] == [("a", "a"), ("old", "fresh")]
    assert (found.only_before, found.only_after) == (("gone",), ("added",))
    assert "fresh was called old: the same artifact in the same runner." in found.notes


def test_one_artifact_with_other_settings_is_another():
    before = built({"one": made("k", both(2, 1), threads=1)})
    assert compare(before, built({"two": made("k", both(2, 1), threads=2)})).variants == ()
    found = compare(before, built({"one": made("k", both(2, 1), threads=2)}))
    assert found.variants[0].settings == ("threads 1 → 2",)
    assert not found.variants[0].same
    assert found.comparable, "it was asked for"


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"cpu": {"model": "Xeon", "flags": ["avx2"]}}, "the CPU differs (EPYC and Xeon)"),
        ({"cores": 4}, "the number of usable cores differs (2 and 4)"),
        ({"gpu": True}, None),
        ({"governor": "powersave"}, "the governor differs (performance and powersave)"),
        (
            {"cpu": {"model": "EPYC", "flags": ["avx2", "avx512f"]}},
            "the CPU's instructions differ (avx512f)",
        ),
        ({"python": "3.12.1"}, None),
        ({"versions": {"torch": "3.0"}}, None),
    ],
)
def test_machines_that_differ(other, reason):
    variants = {"a": made("1", both(2, 1))}
    found = compare(built(variants), built(variants, **other))
    assert found.reasons == ((reason,) if reason else ())
    assert found.comparable == (reason is None)


def test_threads_that_nobody_asked_for_are_a_reason():
    rows = [row.model_copy(update={"threads": 1}) for row in both(2, 1)]
    found = compare(built({"a": made("1", both(2, 1))}), built({"a": made("1", rows)}))
    assert found.reasons == ("the threads of a differ (2 and 1)",)


def test_accuracy_with_its_interval():
    before = built({"a": made("1", both(2, 1), accuracy(samples=1000, right=990))})
    worse = compare(
        before, built({"a": made("2", both(2, 1), accuracy(90, 0, samples=1000, right=990))})
    )
    change = worse.variants[0].accuracy
    assert change.outcome == "worse"
    assert change.difference.value == pytest.approx(-0.09)
    assert change.difference.low < -0.09 < change.difference.high < 0
    little = compare(
        before, built({"a": made("2", both(2, 1), accuracy(1, 0, samples=1000, right=990))})
    )
    assert little.variants[0].accuracy.outcome == "no clear change"
    assert compare(before, before).variants[0].accuracy.outcome == "unchanged"


def test_a_metric_that_is_no_share_has_no_interval():
    neither = {"metric": "map", "regressed": None, "improved": None}
    other, plain = (each.model_copy(update=neither) for each in (accuracy(9), accuracy()))
    found = compare(
        built({"a": made("1", both(2, 1), plain)}), built({"a": made("2", both(2, 1), other)})
    )
    change = found.variants[0].accuracy
    assert (change.difference.low, change.outcome) == (None, "not known")


def on(samples_of, **figures):
    return accuracy(**figures).model_copy(update={"evaluated_on": samples_of})


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (on("other", lost=9), "judged on other samples"),
        (on("same", lost=9, samples=500, right=490), "judged on 360 samples and on 500"),
        (on("same", lost=9).model_copy(update={"metric": "top5"}), "the metric was top1 and is top5"),
    ],
)
def test_accuracies_on_other_samples_are_not_subtracted(other, reason):
    before = built({"a": made("1", both(2, 1), on("same"))})
    found = compare(before, built({"a": made("2", both(2, 1), other)}))
    change = found.variants[0].accuracy
    assert (change.outcome, change.difference, change.reason) == ("not comparable", None, reason)
    assert f"a: the accuracies are not comparable: {reason}." in found.notes
    shown = terminal.text(changes.document([found]))
    assert "(not comparable)" in shown
    assert changes.ReportComparison.model_validate_json(found.model_dump_json(by_alias=True)) == found
    assert "not comparable" in csv_of_changes([found])
    assert "not comparable" in html.html(changes.document([found]))


def test_a_failed_variant_has_a_row():
    gone = made("1", []).model_copy(update={"status": "failed", "artifact": None})
    found = compare(built({"a": made("1", both(2, 1))}), built({"a": gone}))
    assert "built → failed, no latency to compare" in terminal.text(changes.document([found]))


def everything():
    before = built({"a": made("1", both(2, 1), accuracy(), 1000), "x|y": made("k", both(1, 1))})
    after = built(
        {"a": made("2", both(1, 1), accuracy(5), 500), "x|y": made("k", both(1, 1))},
        versions={"torch": "2.9.0", "onnxruntime": "1.23.0"},
    )
    return compare(before, after)


def test_text_and_markdown_say_all_of_it():
    found = everything()
    text = terminal.text(changes.document([found]))
    assert text.startswith("What changed\n")
    assert "\nbefore → after\n" in text
    line = next(line for line in text.splitlines() if line.lstrip().startswith("a "))
    for figure in (
        "2.00 → 1.00",
        "0.500x [0.4",
        "faster",
        "1.00 kB → 500 B (-50.0 %)",
        "98.89 % → 97.50 %",
    ):
        assert figure in line
    assert "onnxruntime 1.22.0 → 1.23.0" in text
    assert "not measured side by side" in text
    written = markdown(changes.document([found]))
    assert "x\\|y" in written
    assert len({line.count(" | ") for line in written.splitlines() if line.startswith("| a")}) == 1


def test_json_has_the_schema_and_comes_back():
    found = everything()
    record = json.loads(found.model_dump_json(by_alias=True))
    assert record["schema"] == 1
    assert changes.ReportComparison.model_validate(record) == found


def test_csv_has_one_row_per_variant_and_batch_size():
    found = everything()
    rows = list(csv.DictReader(io.StringIO(csv_of_changes([found, found]))))
    assert len(rows) == 8
    assert rows[0]["variant"] == "a"
    assert float(rows[0]["p50_ratio"]) == pytest.approx(0.5)
    assert rows[0]["p50_outcome"] == "faster"
    assert float(rows[1]["p50_after_ms"]) == pytest.approx(4.0)


def test_the_page_is_well_formed_complete_and_safe():
    found = everything()
    page = html.html(changes.document([found, found]))
    parsed = Parsed(page)
    assert "http" not in page.replace("http-equiv", "")
    assert {"a", "x|y"} <= {text for name, text in parsed.texts if name == "th"}
    assert "faster" in parsed.said("span")
    assert len([each for each in parsed.all("svg") if each.get("role") == "img"]) == 4
    hostile = compare(built({HOSTILE: made("1", both(2, 1))}), built({HOSTILE: made("2", both(2, 1))}))
    hostile = hostile.model_copy(update={"reasons": (HOSTILE,), "comparable": False})
    page = html.html(changes.document([hostile]))
    Parsed(page)
    assert "<script" not in page
    assert "<h2>Not comparable</h2>" in page
