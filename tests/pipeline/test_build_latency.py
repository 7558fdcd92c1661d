"""Latency in a build: what is told of every two variants, and what is kept for later builds."""

import pytest
from tiny_project import DATA, HEAD

from optcli import environment
from optcli.measure.latency import launches, summary
from optcli.pipeline import latency, places
from optcli.store.locks import held

VARIANTS = """\
  plain: []
  copied: ["./fakes.py:Copy"]
"""
AGAIN = '  again: ["./fakes.py:Copy", {"./fakes.py:Copy": {note: again}}]\n'


@pytest.fixture
def found(monkeypatch):
    """What each build found out about latency."""
    kept, measure = [], latency.measure

    def remembered(*args):
        kept.append(measure(*args))
        return kept[-1]

    monkeypatch.setattr(latency, "measure", remembered)
    return kept


@pytest.mark.slow
def test_every_two_variants_have_a_ratio_also_from_the_store(project, found):
    project.recipe(VARIANTS + AGAIN)
    project.build()
    project.build()
    measured, cached = found
    assert not project.measured
    ratio = measured.ratio("again", "copied", 1)
    assert ratio.low <= ratio.value <= ratio.high
    assert cached.ratio("again", "copied", 1) == ratio
    other = measured.ratio("copied", "again", 1)
    assert other.value == pytest.approx(1 / ratio.value)
    assert (other.low, other.high) == (pytest.approx(1 / ratio.high), pytest.approx(1 / ratio.low))
    assert measured.ratio("again", "plain", 1) == measured.rows["again"][0].speedup
    assert measured.ratio("again", "plain", 4) is None
    assert measured.ratio("again", "nobody", 1) is None


@pytest.mark.slow
def test_accuracy_alone_waits_for_no_other_measurement(project):
    project.recipe(VARIANTS, data=DATA)
    project.build()
    assert project.measured
    samples = project.artifacts / "tiny" / "samples.npz"
    assert samples.exists()
    project.recipe(VARIANTS, data=DATA, head=f"{HEAD}slo: {{p99_ms: 0.000001}}\n")
    with held(places.measurement_lock_path()):
        report = project.build(overrides=["latency=off"], remeasure=True)
    assert project.judged
    assert not project.measured
    assert all(not each.latency for each in report.variants.values())
    assert {each.name for each in report.variants["copied"].verdicts} >= {"accuracy"}
    assert not any("slo" in each.name for each in report.variants["copied"].verdicts)
    assert report.exit_code == 0
    assert report.recommendation == (
        "Latency was not measured (latency: off), slo not judged: no variant is recommended."
    )
    # Those of the build before would belong to no figure of this report.
    assert not samples.exists()


@pytest.mark.long
def test_what_the_machine_was_not_fit_for_is_not_kept(project, found, monkeypatch):
    project.recipe(VARIANTS)
    with monkeypatch.context() as busy:
        busy.setattr(launches, "NOT_FIT", -1.0)
        report = project.build()
    assert not any(row.fit for variant in report.variants.values() for row in variant.latency)
    assert report.variants["copied"].latency[0].speedup is None
    assert found[0].ratios == {}
    project.build()
    assert project.measured, "a build on a quiet machine measures again"
    project.build()
    assert not project.measured


@pytest.mark.long
@pytest.mark.slow
def test_a_comparison_without_a_ratio_is_not_kept_though_every_row_is_fit(project, found, monkeypatch):
    project.recipe(VARIANTS)
    with monkeypatch.context() as apart:
        apart.setattr(summary, "counted_together", lambda measured, one, other: ())
        report = project.build()
    assert all(row.fit for variant in report.variants.values() for row in variant.latency)
    assert report.variants["copied"].latency[0].speedup is None
    project.build()
    assert project.measured


@pytest.mark.slow
def test_a_p99_that_was_asked_for_and_lost_is_not_kept(project, found, monkeypatch):
    project.recipe(VARIANTS, head=f"{HEAD}slo: {{p99_ms: 1000}}\n")
    with monkeypatch.context() as lost:
        lost.setattr("optcli.pipeline.latency.latency.lost_p99", lambda measured: True)
        project.build()
    project.build()
    assert project.measured
    project.build()
    assert not project.measured


@pytest.mark.long
def test_another_machine_of_the_same_processor_measures_for_itself(project, monkeypatch):
    project.recipe(VARIANTS)
    project.build()
    other = {**environment.machine(), "identity": "another"}
    monkeypatch.setattr(environment, "machine", lambda: other)
    project.build()
    assert project.measured
