"""Measuring until it is decided: no pair more than needed, and never past the time cap."""

import numpy as np
import pytest

from optcli.gate.rule import ComparedFigure, planned, until_decided
from optcli.settings.gate import GateBar, GateSettings

P50, P95 = ComparedFigure(0.5, 1), ComparedFigure(0.95, 1)
RULES = {
    P50: planned(GateBar(limit=0.05), GateSettings(), 1),
    P95: planned(GateBar(limit=0.3, margin=0.1), GateSettings(), 1),
}


class Fake:
    """Pairs with given log ratios; each takes a second of a clock of its own."""

    def __init__(self, **ratios):
        self.ratios, self.count, self.now = ratios, 0, 0.0

    def measure(self, count):
        self.count += count
        self.now += count

    def log_ratios(self, figure):
        return list(self.ratios.get(figure.metric, []))[: self.count]

    def run(self, advice=(P95,), max_seconds=1000.0):
        told = []
        found = until_decided(
            self, RULES, advice, max_seconds, lambda *each: told.append(each), lambda: self.now
        )
        assert told[-1] == (self.count, 24)
        return found


def noise(level, spread, seed=0):
    return np.random.default_rng(seed).normal(level, spread, 24)


def test_it_stops_at_the_first_look_that_decides():
    pairs = Fake(p50=noise(0.0, 0.01), p95=noise(0.0, 0.05))
    found = pairs.run()
    assert pairs.count == 8
    assert (found[P50].answer, found[P95].answer) == ("pass", "pass")
    slower = Fake(p50=noise(0.1, 0.01), p95=noise(0.1, 0.05))
    assert (slower.run()[P50].answer, slower.count) == ("fail", 8)


def test_advice_is_no_reason_to_go_on():
    wild = noise(0.2, 0.6)
    pairs = Fake(p50=noise(0.0, 0.01), p95=wild)
    assert pairs.run()[P95].answer == "continue"
    assert pairs.count == 8
    pairs = Fake(p50=noise(0.0, 0.01), p95=wild)
    assert pairs.run(advice=())[P95].answer in ("inconclusive", "fail")
    assert pairs.count > 8


def test_a_decision_stands_when_others_go_on():
    later = np.concatenate([noise(0.0, 0.01)[:8], np.full(16, 0.5)])
    pairs = Fake(p50=later, p95=noise(0.2, 0.6))
    found = pairs.run(advice=())
    assert (found[P50].answer, found[P50].pairs) == ("pass", 8)


def test_what_is_unclear_at_the_end_is_inconclusive():
    pairs = Fake(p50=noise(0.035, 0.08, seed=3))
    assert pairs.run()[P50].answer == "inconclusive"
    assert pairs.count == 24


@pytest.mark.parametrize(("cap", "pairs_done"), [(0.0, 1), (5.0, 5), (12.0, 12)])
def test_the_time_cap_ends_it_undecided(cap, pairs_done):
    pairs = Fake(p50=noise(0.035, 0.03, seed=1))
    found = pairs.run(max_seconds=cap)
    assert pairs.count == pairs_done
    assert found[P50].answer == "continue"
    assert found[P50].pairs == pairs_done


def test_a_figure_that_calls_cannot_give_is_left_out():
    assert P95 not in Fake(p50=noise(0.0, 0.01)).run()
