"""How variants stand beside each other: parents, the fastest in fp32, absent baselines."""

import json
from dataclasses import replace

import pytest
from tiny_project import DATA, HEAD, want_a_gpu

from optcli.files.digest import FileDigests
from optcli.pipeline import device_reports, latency
from optcli.pipeline.latency import LatencyResults
from optcli.pipeline.plan import plan_of
from optcli.pipeline.verdicts import parent_of
from optcli.recipe import load
from optcli.results import ArtifactSummary, Estimate, Latency, Report, VariantReport, Verdict, flags


def planned(project, variants):
    project.recipe(variants)
    return plan_of(load(project.folder / "recipe.yaml"), {}, FileDigests())


QUANTIZED = """\
  plain: []
  clean: [optimize_onnx]
  openvino: [to_openvino]
  half: [convert_precision]
  int8: [quantize_dynamic]
  clean-int8: [optimize_onnx, quantize_dynamic]
  half-openvino: [convert_precision, to_openvino]
  other-options: [{optimize_onnx: {to: ort}}]
"""


def test_the_parent_is_the_variant_with_fewest_passes_left_out(project):
    to_do = planned(project, QUANTIZED)
    assert {variant.name: parent_of(variant, to_do) for variant in to_do.variants} == {
        "plain": None,
        "clean": "plain",
        "openvino": "plain",
        "half": "plain",
        "int8": "plain",
        "clean-int8": "clean",  # as many passes as int8 leaves out, but the last
        "half-openvino": "openvino",  # in the same runner
        "other-options": "plain",
    }


def row(p50, fit=True, size=1, speedup=2.0):
    return Latency(
        batch_size=size,
        threads=1,
        samples=100,
        p50_ms=Estimate(value=p50),
        mean_ms=p50,
        throughput_per_s=1e3,
        speedup=Estimate(value=speedup, low=speedup, high=speedup),
        measured_at="2026-01-01T00:00:00+00:00",
        fit=fit,
    )


def found(rows, ratios):
    estimates = {
        (name, over, 1): Estimate(value=value, low=value, high=value)
        for (name, over), value in ratios.items()
    }
    return LatencyResults(rows={name: (one,) for name, one in rows.items()}, ratios=estimates)


def test_each_row_has_its_speedup_over_its_own_parent(project):
    to_do = planned(project, QUANTIZED)
    rows = {"plain": row(4), "clean": row(2), "clean-int8": row(1)}
    measured = found(rows, {("clean-int8", "clean"): 2.1, ("clean", "plain"): 1.9})
    beside = device_reports.compared(to_do, measured, baseline_stands=True).rows
    assert beside["clean-int8"][0].over_parent.variant == "clean"
    assert beside["clean-int8"][0].over_parent.speedup.value == 2.1
    assert beside["clean"][0].over_parent.variant == "plain"
    assert beside["plain"][0].over_parent is None


@pytest.mark.parametrize("name", ["plain", "clean"])
def test_what_is_disturbed_on_either_side_has_no_ratio(project, name):
    to_do = planned(project, QUANTIZED)
    rows = {"plain": row(4), "clean": row(2)}
    rows[name] = row(rows[name].p50_ms.value, fit=False)
    measured = found(rows, {("clean", "plain"): 2.0})
    beside = device_reports.compared(to_do, measured, baseline_stands=True).rows["clean"][0]
    assert (beside.speedup, beside.over_parent) == (None, None)


def test_beside_a_baseline_that_does_not_stand_nobody_has_a_speedup(project):
    to_do = planned(project, QUANTIZED)
    measured = found(
        {"plain": row(4), "clean": row(2), "clean-int8": row(1)}, {("clean-int8", "clean"): 2}
    )
    beside = device_reports.compared(to_do, measured, baseline_stands=False).rows
    assert all(each[0].speedup is None for each in beside.values())
    assert flags.no_speedup("baseline-failed", "plain") in beside["clean"][0].flags
    assert beside["clean-int8"][0].over_parent.speedup.value == 2  # which is no substitute for it


def reports(rows, precisions=None, refused=()):
    def one(name, latency):
        precision = (precisions or {}).get(name, "fp32")
        summary = ArtifactSummary(key="k", format="onnx", path="p", precision=precision, size_bytes=1)
        verdict = Verdict(name="accuracy", outcome="reject", blocking=True, reason="x")
        verdicts = (verdict,) if name in refused else ()
        return VariantReport(status="built", artifact=summary, latency=(latency,), verdicts=verdicts)

    variants = {name: one(name, latency) for name, latency in rows.items()}
    rest = VariantReport(status="skipped", reason="x")
    return {**dict.fromkeys(("plain", "clean", "openvino", "half", "int8"), rest), **variants}


def over_fp32(project, rows, ratios, **options):
    to_do = planned(project, "".join(QUANTIZED.splitlines(keepends=True)[:5]))
    beside = device_reports.compared_with_fp32(to_do, found(rows, ratios), reports(rows, **options))
    return {
        name: (each.over_fp32.variant, each.over_fp32.speedup.value) if each.over_fp32 else None
        for name, variant in beside.items()
        for each in variant.latency
    }


def test_the_fastest_in_fp32_is_of_the_unchanged_network(project):
    rows = {"plain": row(4), "clean": row(2), "half": row(1), "int8": row(0.5)}
    ratios = {("int8", "clean"): 4.0, ("half", "clean"): 2.0, ("clean", "plain"): 2.0}
    # half says fp32 as well, but its pass may change the network: it is no reference.
    assert over_fp32(project, rows, ratios, precisions={"int8": "int8"}) == {
        "plain": ("clean", 0.5),
        "clean": ("clean", 1.0),
        "half": ("clean", 2.0),
        "int8": ("clean", 4.0),
    }


def test_what_is_refused_disturbed_or_not_in_fp32_is_not_the_fastest(project):
    rows = {"plain": row(4), "clean": row(2), "int8": row(1)}
    plain = {"plain": ("plain", 1.0), "clean": ("plain", 2.0), "int8": None}
    assert over_fp32(project, rows, {("clean", "plain"): 2.0}, refused=("clean",)) == plain
    disturbed = {**rows, "clean": row(2, fit=False)}
    # Nor is the next one: the disturbed one may be faster still.
    assert set(over_fp32(project, disturbed, {("clean", "plain"): 2.0}).values()) == {None}
    disturbed = {**rows, "plain": row(4, fit=False)}
    slower = over_fp32(project, disturbed, {("int8", "clean"): 2.0}, precisions={"int8": "int8"})
    assert slower["int8"] == ("clean", 2.0)
    kinds = {"clean": "bf16"}
    assert over_fp32(project, rows, {("clean", "plain"): 2.0}, precisions=kinds) == plain


WITHOUT_BASELINE = (
    '  gpu: {passes: ["./fakes.py:Copy"], runner: openvino}\n'
    '  plain: []\n  copied: ["./fakes.py:Copy"]\n'
)


@pytest.mark.slow
def test_a_baseline_that_was_not_run_has_no_substitute(project, monkeypatch):
    want_a_gpu(project, monkeypatch)
    project.recipe(WITHOUT_BASELINE)
    report = project.build()
    assert report.baseline == "gpu"
    assert report.variants["gpu"].latency == ()
    for name in ("plain", "copied"):
        (measured,) = report.variants[name].latency
        assert measured.speedup is None
        # What a copy is over the plain model is measured, and chance decides it at two calls.
        (verdict,) = [each for each in report.variants[name].verdicts if each.name == "speed-up"]
        assert verdict.outcome == "inconclusive"
    assert report.recommended is None
    assert report.recommendation == "Nothing can be recommended: the baseline gpu has no latency."
    assert report.exit_code == 0
    assert report.exit_reason.endswith("no variant is recommended")


@pytest.mark.slow
def test_without_its_baseline_an_accuracy_bar_is_not_passed(project, monkeypatch):
    want_a_gpu(project, monkeypatch)
    project.recipe(WITHOUT_BASELINE, data=DATA)
    report = project.build()
    (verdict,) = [each for each in report.variants["plain"].verdicts if each.name == "accuracy"]
    assert (verdict.outcome, verdict.blocking) == ("inconclusive", True)
    assert report.exit_code == 5
    assert report.exit_reason.startswith("no variant is accepted: plain is undecided (accuracy)")
    assert report.variants["gpu"].verdicts == ()


@pytest.mark.slow
def test_without_its_baseline_a_wanted_speedup_is_undecided(project, monkeypatch):
    want_a_gpu(project, monkeypatch)
    project.recipe(WITHOUT_BASELINE, head=HEAD.replace("threads: 1}", "threads: 1, min_speedup: 1.1}"))
    assert project.build().exit_code == 5


@pytest.mark.slow
def test_a_report_holds_who_was_compared_with_whom(project):
    project.recipe('  plain: []\n  copied: ["./fakes.py:Copy"]\n', data=DATA)
    report = project.build()
    copied = json.loads(report.to_json())["variants"]["copied"]
    assert copied["latency"][0]["over_parent"]["variant"] == "plain"
    assert copied["latency"][0]["over_fp32"]["variant"] in ("plain", "copied")
    assert copied["artifact"]["digest"] == report.variants["copied"].artifact.digest
    plain = report.variants["plain"]
    assert plain.accuracy.evaluated_on == report.variants["copied"].accuracy.evaluated_on is not None
    assert Report.model_validate_json(report.to_json()) == report


@pytest.fixture
def disturbed(monkeypatch):
    """Builds as on a machine that was never quiet."""
    measure = latency.measure

    def unfit(*args):
        found = measure(*args)
        rows = {
            name: tuple(row.model_copy(update={"fit": False, "speedup": None}) for row in each)
            for name, each in found.rows.items()
        }
        return replace(found, rows=rows, ratios={})

    monkeypatch.setattr(latency, "measure", unfit)


TWO = '  plain: []\n  copied: {passes: ["./fakes.py:Copy"], gate: true}\n'


@pytest.mark.slow
def test_a_disturbed_machine_withholds_the_recommendation_and_fails_nothing(project, disturbed):
    project.recipe(TWO, data=DATA)
    report = project.build()
    assert report.recommended is None
    assert report.recommendations[1].withheld
    assert "cannot be told now" in report.recommendation
    assert (report.exit_code, report.exit_reason) == (
        0,
        "the build is done; the machine was too unsteady for a recommendation",
    )


@pytest.mark.slow
@pytest.mark.parametrize("question", ["min_speedup", "slo: {p50_ms: 1000}", "slo: {p50_ms: 0.000001}"])
def test_a_disturbed_machine_leaves_a_question_about_speed_open(project, disturbed, question):
    head = HEAD.replace("threads: 1}", "threads: 1, min_speedup: 0.01}")
    project.recipe(TWO, head=head if question == "min_speedup" else f"{HEAD}{question}\n")
    report = project.build()
    assert report.exit_code == 5
    assert report.exit_reason.startswith("copied, marked gate, is undecided (s")
