import pytest

from optcli.measure.latency import verdicts
from optcli.measure.latency.launches import interval_over_launches
from optcli.results import Against, Estimate, Latency
from optcli.settings.latency import LatencySettings
from optcli.settings.slo import SloSettings

NO_BAR = LatencySettings()


def row(speedup=None, p99=None, batch_size=1, samples=368, **more):
    return Latency(
        batch_size=batch_size,
        threads=2,
        samples=samples,
        p50_ms=Estimate(value=2.0, low=1.9, high=2.1),
        p99_ms=p99,
        mean_ms=2.0,
        throughput_per_s=500,
        speedup=speedup,
        measured_at="2026-01-01T00:00:00+00:00",
        **more,
    )


@pytest.mark.parametrize(
    ("low", "value", "high", "outcome"),
    [
        (1.8, 2, 2.2, "accept"),
        (0.5, 0.6, 0.7, "reject"),
        (0.95, 1.02, 1.1, "inconclusive"),
        (1, 1, 1, "reject"),
    ],
)
def test_speedup_is_advice_from_the_interval(low, value, high, outcome):
    (verdict,) = verdicts([row(Estimate(value=value, low=low, high=high))], NO_BAR, None, "eager")
    assert (verdict.name, verdict.outcome, verdict.blocking) == ("speed-up", outcome, False)
    assert verdict.reason.startswith("does not pay: ") == (outcome == "reject")
    assert verdict.interval == (low, high)


@pytest.mark.parametrize(
    ("least", "outcome"), [(1.5, "accept"), (2.0, "inconclusive"), (3.0, "reject"), (0.9, "accept")]
)
def test_min_speedup_blocks(least, outcome):
    settings = LatencySettings(min_speedup=least)
    (verdict,) = verdicts([row(Estimate(value=2, low=1.8, high=2.2))], settings, None, "eager")
    assert (verdict.outcome, verdict.blocking, verdict.limit) == (outcome, True, least)


def test_slower_than_its_parent_is_said():
    parent = Against(variant="onnx", speedup=Estimate(value=0.8, low=0.7, high=0.9))
    rows = [row(Estimate(value=2, low=1.8, high=2.2), over_parent=parent)]
    found = verdicts(rows, NO_BAR, None, "eager", parent="onnx", beside_parent=[row()])
    assert [(each.name, each.outcome) for each in found] == [
        ("speed-up", "accept"),
        ("speed-up over onnx", "reject"),
    ]
    assert found[1].reason == "does not pay: 0.80 times [0.70, 0.90] as fast as onnx"
    assert not found[1].blocking
    assert [each.over for each in found] == [None, "onnx"]


def test_over_a_parent_that_is_the_baseline_nothing_is_said_twice():
    parent = Against(variant="eager", speedup=Estimate(value=2, low=1.8, high=2.2))
    rows = [row(Estimate(value=2, low=1.8, high=2.2), over_parent=parent)]
    found = verdicts(rows, NO_BAR, None, "eager", parent="eager", beside_parent=[row()])
    assert [each.name for each in found] == ["speed-up"]


FOUR = Estimate(value=4, low=3.9, high=4.1)


@pytest.mark.parametrize(
    ("mine", "base", "who"),
    [
        (False, True, "the times of this variant;"),
        (True, False, "the times of eager;"),
        (False, False, "the times of both;"),
    ],
)
@pytest.mark.parametrize("speedup", [FOUR, None])
def test_a_disturbed_side_decides_no_speedup(mine, base, who, speedup):
    settings = LatencySettings(min_speedup=1.5)
    rows, beside = [row(speedup, fit=mine)], [row(Estimate(value=1, low=1, high=1), fit=base)]
    (verdict,) = verdicts(rows, settings, None, "eager", others=beside)
    assert (verdict.outcome, verdict.blocking, verdict.actual) == ("inconclusive", True, None)
    assert who in verdict.reason


def test_where_launches_do_not_agree_it_is_said():
    (verdict,) = verdicts([row(None)], NO_BAR, None, "eager", others=[row(FOUR)])
    assert verdict.outcome == "inconclusive"
    assert verdict.reason.startswith(
        "the measurement cannot tell: launches that were quiet for both do not agree"
    )


def test_only_the_baseline_s_row_of_the_same_batch_size_counts():
    beside = [row(FOUR, batch_size=8, fit=False), row(FOUR)]
    (verdict,) = verdicts([row(FOUR)], NO_BAR, None, "eager", others=beside)
    assert verdict.outcome == "accept"


@pytest.mark.parametrize("bound", [5, 9, 20])
def test_a_disturbed_row_decides_no_service_level(bound):
    p99 = Estimate(value=9, low=8, high=10)
    (verdict,) = verdicts(
        [row(p99=p99, fit=False)], NO_BAR, SloSettings(p99_ms=bound), "eager", is_baseline=True
    )
    assert verdict.outcome == "inconclusive"
    assert "measure again when the machine is quiet" in verdict.reason


@pytest.mark.parametrize(
    ("waited", "p50_low", "p95_low", "outcome"),
    [
        (0.005, 1.9, 4, "reject"),  # less was disturbed than lies beyond p99
        (0.02, 1.9, 4, "inconclusive"),  # the tail beyond p99 may be the disturbance alone
        (0.02, 1.9, 5.5, "reject"),  # 2 % cannot make p95
        (0.08, 1.9, 5.5, "inconclusive"),
        (0.08, 5.2, 5.5, "reject"),  # nor the median
    ],
)
def test_a_tail_that_other_work_may_have_made_breaks_no_promise(waited, p50_low, p95_low, outcome):
    found = row(p99=Estimate(value=9, low=8, high=10), waited=waited).model_copy(
        update={
            "p50_ms": Estimate(value=p50_low + 0.1, low=p50_low, high=p50_low + 0.2),
            "p95_ms": Estimate(value=p95_low + 1, low=p95_low, high=p95_low + 2),
        }
    )
    (verdict,) = verdicts([found], NO_BAR, SloSettings(p99_ms=5), "eager", is_baseline=True)
    assert verdict.outcome == outcome
    assert ("other work had the processors" in verdict.reason) == (outcome == "inconclusive")


ABOVE = Estimate(value=1.2, low=1.1, high=1.3)


@pytest.mark.parametrize(
    ("over", "parent_fit", "said"),
    [
        (ABOVE, True, "1.20 times"),
        (None, False, "other work disturbed the times"),
        (None, True, "are too few"),
    ],
)
def test_the_own_parent_has_a_verdict_also_where_it_cannot_be_told(over, parent_fit, said):
    found = row(ABOVE, over_parent=over and Against(variant="onnx", speedup=over))
    beside = {"parent": "onnx", "beside_parent": [row(ABOVE, fit=parent_fit)]}
    _, verdict = verdicts([found], NO_BAR, None, "eager", **beside)
    assert (verdict.name, verdict.blocking) == ("speed-up over onnx", False)
    assert verdict.outcome == ("accept" if over else "inconclusive")
    assert said in verdict.reason
    assert len(verdicts([found], NO_BAR, None, "eager", parent="onnx")) == 1, "it was not measured"


def test_without_an_interval_nothing_is_decided():
    for speedup in (None, Estimate(value=3.0)):
        (verdict,) = verdicts([row(speedup)], NO_BAR, None, "eager")
        assert verdict.outcome == "inconclusive"


@pytest.mark.parametrize(
    ("low", "high", "outcome"), [(8, 10, "accept"), (8, 10.1, "inconclusive"), (10.1, 12, "reject")]
)
def test_service_level_from_the_interval(low, high, outcome):
    rows = [row(p99=Estimate(value=9, low=low, high=high)), row(batch_size=8)]
    (verdict,) = verdicts(rows, NO_BAR, SloSettings(p99_ms=10), "eager", is_baseline=True)
    assert (verdict.name, verdict.outcome, verdict.limit) == ("slo p99_ms", outcome, 10)
    assert not verdict.blocking
    assert "batch size 1" in verdict.reason


def test_a_percentile_that_was_not_measured_is_inconclusive():
    rows = [row(Estimate(value=2, low=1.8, high=2.2), samples=128)]
    _, verdict = verdicts(rows, NO_BAR, SloSettings(p99_ms=10), "eager")
    assert (verdict.outcome, verdict.blocking) == ("inconclusive", True)
    assert verdict.reason == "p99 at batch size 1 is not known: it needs 368 calls, 128 count"
    assert verdict.actual is None


BOUNDS = SloSettings(load_ms=100, memory_bytes=200_000_000, size_bytes=1_000_000)


def promised(rows, size_bytes=1_000_000, slo=BOUNDS):
    found = verdicts(rows, NO_BAR, slo, "eager", is_baseline=True, size_bytes=size_bytes)
    return {each.name: each for each in found}


@pytest.mark.parametrize(
    ("load", "memory", "outcome"),
    [
        ((80, 100), (150_000_000, 200_000_000), "accept"),
        ((80, 101), (190_000_000, 210_000_000), "inconclusive"),
        ((101, 120), (210_000_000, 220_000_000), "reject"),
        (None, None, "inconclusive"),
    ],
)
def test_load_time_and_memory_are_judged_by_their_intervals(load, memory, outcome):
    figures = {"load_ms": 90.0, "load_interval_ms": load, "memory_interval_bytes": memory}
    usual = row(peak_memory_bytes=190_000_000, **figures)
    # The larger batch takes less: the one that takes most decides.
    found = promised([usual, row(batch_size=8, peak_memory_bytes=1)])
    assert (found["slo load_ms"].outcome, found["slo memory_bytes"].outcome) == (outcome, outcome)
    assert found["slo memory_bytes"].interval == memory
    assert "at batch size 1" in found["slo memory_bytes"].reason
    assert "190 MB" in found["slo memory_bytes"].reason


@pytest.mark.parametrize(("size_bytes", "outcome"), [(1_000_000, "accept"), (1_000_001, "reject")])
def test_the_size_is_exact(size_bytes, outcome):
    for rows in ([row()], ()):
        verdict = promised(rows, size_bytes)["slo size_bytes"]
        assert (verdict.outcome, verdict.actual) == (outcome, size_bytes)


def test_what_was_not_measured_is_said_and_not_met():
    for rows in ([row()], ()):
        found = promised(rows, None)
        assert {each.outcome for each in found.values() if each.name != "speed-up"} == {"inconclusive"}
        assert found["slo load_ms"].reason.startswith("load time was not measured")
        assert found["slo memory_bytes"].reason.startswith("peak memory was not measured")
        assert found["slo size_bytes"].reason.startswith("size is not known")


def test_other_work_leaves_load_time_open_and_memory_decided():
    disturbed = row(
        fit=False,
        load_ms=900.0,
        load_interval_ms=(800, 1000),
        peak_memory_bytes=100_000_000,
        memory_interval_bytes=(90_000_000, 110_000_000),
    )
    found = promised([disturbed])
    assert found["slo load_ms"].outcome == "inconclusive"
    assert "other work disturbed it" in found["slo load_ms"].reason
    assert found["slo memory_bytes"].outcome == "accept"
    assert promised([disturbed], slo=SloSettings(rate_per_s=5)) == {}


def test_what_launches_gave_has_an_interval_with_their_usual_differences():
    one, several = (interval_over_launches(each) for each in ([100.0], [90.0, 100.0, 110.0]))
    many = interval_over_launches([99.0, 100.0, 101.0] * 4)
    assert one[0] < 60
    assert several[0] < 85
    assert several[1] > 115
    assert 98 < many[0] <= 100 <= many[1] < 102
    memory = interval_over_launches([1e8, 1e8], 8_000_000)
    assert 0.5e8 < memory[0] < 0.95e8 < 1.05e8 < memory[1] < 1.5e8
    assert interval_over_launches([]) is interval_over_launches([0.0]) is None
