"""What a trial is timed beside, and when that ends."""

from types import SimpleNamespace
from typing import Any

import pytest

from optcli.results import Estimate
from optcli.results.tuning import TuningTrial
from optcli.tuning import timing
from optcli.tuning.timing import BEST, REFERENCE, Timing

NOTHING: Any = SimpleNamespace()
TWICE = Estimate(value=2.0, low=1.8, high=2.2)


def recipe(objective: str = "p50") -> Any:
    tune = SimpleNamespace(objective=objective, max_size_mb=None)
    return SimpleNamespace(tune=tune, slo=None, seed=0)


def trial(number: int, **more: Any) -> TuningTrial:
    return TuningTrial(number=number, label="", why="", parameters={}, passes=(), **more)


class Measuring:
    """A fake runner of trials: slower than the best by these ratios, launch by launch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *launches: dict[int, Estimate | None]) -> None:
        self._launches = list(launches)
        self.measured: list[Any] = []
        self.names: list[str] = []
        monkeypatch.setattr(timing.latency, "speedup", self._speedup)
        monkeypatch.setattr(timing.latency, "to_results", self._rows)

    def measure(self, _: Any, names: Any, settings: Any, __: int, **more: Any) -> Any:
        self.names = list(names)
        assert settings.launches == len(self._launches)
        for ratios in self._launches:
            self.measured.append(ratios)
            found = SimpleNamespace(ratios=ratios, failures={})
            is_last = len(self.measured) == len(self._launches)
            if not is_last and more["enough"] is not None and more["enough"](found):
                break
        return found

    def _speedup(self, measured: Any, name: str, over: str, size: int) -> Estimate | None:
        assert (name, over) == (self.names[-1], self.names[-2])
        ratio: Estimate | None = measured.ratios[size]
        return ratio

    def _rows(self, _: Any) -> Any:
        def row(size: int, ms: float) -> Any:
            tail = {"p95_ms": None, "p99_ms": None, "peak_memory_bytes": None}
            p50_ms = Estimate(value=ms)
            return SimpleNamespace(batch_size=size, region="host", threads=2, p50_ms=p50_ms, **tail)

        return {
            name: [row(size, ms * size) for size in (1, 8)]
            for name, ms in zip(self.names, (6.0, 3.0), strict=True)
        }


def timed(place: Any, names: list[str], best: TuningTrial | None, *, may_end: bool) -> TuningTrial:
    made: Any = SimpleNamespace(plan=SimpleNamespace(threads=2))
    return Timing(recipe(), (1, 8)).timed(place, made, names, trial(3), best, may_end=may_end)


def best() -> TuningTrial:
    return trial(2, speedups={1: TWICE, 8: TWICE}, score=TWICE)


def test_the_reference_is_left_out_where_a_best_one_says_how_fast_it_is() -> None:
    p50 = Timing(recipe(), (1, 8))
    assert p50.companions(None) == (REFERENCE,)
    assert p50.companions(best()) == (BEST,)
    unknown = best().model_copy(update={"speedups": {1: TWICE}})
    assert p50.companions(unknown) == (REFERENCE, BEST), "the machine was not quiet at batch size 8"
    assert Timing(recipe("memory"), (1, 8)).companions(best()) == (REFERENCE, BEST)


def test_the_speed_over_the_reference_is_that_of_the_best_times_that_over_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    half = Estimate(value=1.5, low=1.4, high=1.6)
    place = Measuring(monkeypatch, {1: None, 8: None}, {1: half, 8: None})
    found = timed(place, [BEST, "trial-3"], best(), may_end=True)
    assert list(found.speedups) == [1]
    known = found.speedups[1]
    assert (known.value, known.low, known.high) == pytest.approx((3.0, 2.52, 3.52))
    assert found.score is not None
    # At batch size 8 the medians say that it is twice as fast as the best one, which is 2.
    assert found.score.value == pytest.approx((3.0 * 4.0) ** 0.5)
    assert found.ahead == half


def test_a_trial_that_is_behind_has_no_second_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    behind, unclear = Estimate(value=0.7, low=0.6, high=0.8), Estimate(value=0.9, low=0.8, high=1.1)
    slow = {1: behind, 8: behind}
    for first, may_end, launches in (
        (slow, True, 1),
        (slow, False, 2),
        ({1: unclear, 8: unclear}, True, 2),
        ({1: behind, 8: None}, True, 2),
        ({1: behind, 8: Estimate(value=0.7)}, True, 2),
    ):
        place = Measuring(monkeypatch, first, slow)
        found = timed(place, [BEST, "trial-3"], best(), may_end=may_end)
        assert len(place.measured) == launches, (first, may_end)
        assert found.ahead is not None
        assert found.ahead.value == pytest.approx(0.7)
    place = Measuring(monkeypatch, slow, slow)
    found = timed(place, [REFERENCE, "trial-3"], trial(0), may_end=True)
    assert len(place.measured) == 1, "the reference is the best so far"
    assert found.speedups[1] == behind


def test_nothing_is_ahead_of_what_is_not_raced(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Measuring(monkeypatch, {1: TWICE, 8: TWICE}, {1: TWICE, 8: TWICE})
    assert timed(place, [REFERENCE, "trial-3"], None, may_end=False).ahead is None
