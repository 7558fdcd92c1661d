import pytest

from optcli.latency import verdicts
from optcli.results import Estimate, Latency
from optcli.settings import LatencySettings, SloSettings

NO_BAR = LatencySettings()


def row(speedup=None, p99=None, batch_size=1, flags=()):
    return Latency(
        batch_size=batch_size,
        threads=2,
        samples=368,
        p50_ms=Estimate(value=2.0, low=1.9, high=2.1),
        p99_ms=p99,
        mean_ms=2.0,
        throughput_per_s=500,
        speedup=speedup,
        measured_at="2026-01-01T00:00:00+00:00",
        flags=flags,
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
    found = verdicts(
        [row(Estimate(value=2, low=1.8, high=2.2))],
        NO_BAR,
        None,
        "eager",
        parent=("onnx", Estimate(value=0.8, low=0.7, high=0.9)),
    )
    assert [(each.name, each.outcome) for each in found] == [
        ("speed-up", "accept"),
        ("speed-up over onnx", "reject"),
    ]
    assert found[1].reason == "does not pay: 0.80 times [0.70, 0.90] as fast as onnx"
    assert not found[1].blocking


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


def test_a_percentile_that_was_not_measured_is_inconclusive_with_its_flag():
    rows = [row(Estimate(value=2, low=1.8, high=2.2), flags=("p99 n/a (n=128, needs 368)",))]
    _, verdict = verdicts(rows, NO_BAR, SloSettings(p99_ms=10), "eager")
    assert (verdict.outcome, verdict.blocking) == ("inconclusive", True)
    assert verdict.reason == "p99 n/a (n=128, needs 368)"
    assert verdict.actual is None
