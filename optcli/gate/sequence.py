"""Measuring until it is decided: launch pairs up to each planned look, then the rule."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from optcli.gate.rule import Decision, Rule, decide


@dataclass(frozen=True, order=True)
class ComparedFigure:
    """What is compared: a quantile (0.5: the median) at a batch size."""

    q: float
    batch_size: int

    @property
    def metric(self) -> str:
        """`p50`, `p95`."""
        return f"p{100 * self.q:g}"


class Pairs(Protocol):
    """Launch pairs of a baseline and a candidate, measured as they are asked for."""

    def measure(self, count: int) -> None:
        """Measure `count` more pairs. Raises `OptcliError` where one side cannot be measured."""

    def log_ratios(self, figure: ComparedFigure) -> Sequence[float]:
        """ln(candidate / baseline) of each pair so far; none where the calls are too few for it."""


def until_decided(
    pairs: Pairs,
    rules: Mapping[ComparedFigure, Rule],
    advice: Sequence[ComparedFigure],
    max_seconds: float,
    progress: Callable[[int, int], None] = lambda done, most: None,
    clock: Callable[[], float] = time.monotonic,
) -> dict[ComparedFigure, Decision]:
    """Measure until every figure that blocks is decided; the others are judged on the same pairs.

    Figures in `advice` are never a reason to go on. After `max_seconds` there is no further look: what
    is undecided then keeps `continue`. `progress` is called with the number of pairs done and the most
    there may be. Figures that the calls cannot give are left out.
    """
    began = clock()
    most = max(look for rule in rules.values() for look in rule.looks)
    done = 0
    decisions: dict[ComparedFigure, Decision] = {}
    for look in sorted({look for rule in rules.values() for look in rule.looks}):
        while done < look and (done == 0 or clock() - began < max_seconds):
            progress(done, most)
            pairs.measure(1)
            done += 1
        for figure, rule in rules.items():
            ratios = pairs.log_ratios(figure)
            undecided = figure not in decisions or decisions[figure].answer == "continue"
            if len(ratios) == done and undecided:
                decisions[figure] = decide(ratios, rule)
        blocking = [decisions.get(figure) for figure in rules if figure not in advice]
        if done < look or not any(each is None or each.answer == "continue" for each in blocking):
            break
    progress(done, most)
    return decisions
