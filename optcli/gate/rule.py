"""The decision rule: slower or not, from the log ratios of launch pairs, measured until it is decided.

For pair i, x_i = ln(candidate / baseline), the median over the rounds that both took in turns. Its
centre is bounded from below and above by exact signed-rank bounds. At each planned look

    fail      the lower bound lies above ln(1 + margin)
    pass      the upper bound lies below ln(1 + limit)
    continue  else; after the last look: inconclusive

The probability of a wrong `fail` is spent over the looks and divided by the number of comparisons
(Bonferroni), so that at a true slow-down of exactly `margin` it stays under 1 % for the whole gate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from optcli.results import Estimate
from optcli.results.statistics import hodges_lehmann, sign_bounds, signed_rank_bounds
from optcli.settings.gate import GateBar, GateSettings

Answer = Literal["pass", "fail", "continue", "inconclusive"]

# Shares of the error rate of a wrong `fail`, spent early: most slow-downs are seen at the first look.
_FAIL_SHARES = (0.4, 0.3, 0.3)
# Wrong `pass` at exactly the limit, at each look.
_PASS_TAIL = 0.025


@dataclass(frozen=True)
class Rule:
    """One comparison's bar: growth that a rebuild explains, growth that blocks, and when to look.

    `margin` and `limit` are fractions (0.05: 5 % slower), `looks` numbers of pairs, `fail_tails` the
    probability of a wrong `fail` at each look.
    """

    margin: float
    limit: float
    looks: tuple[int, ...]
    fail_tails: tuple[float, ...]
    pass_tail: float = _PASS_TAIL
    bounds: Callable[[Sequence[float], float], tuple[float, float]] = signed_rank_bounds


@dataclass(frozen=True)
class Decision:
    """What the pairs say so far.

    `change` is the growth as a fraction with its 95 % interval (not corrected for looks); `low` and
    `high` are the bounds that decided, `growths` that of every pair, as fractions too. `improved`:
    faster by more than the margin, with the certainty that a `fail` needs.
    """

    answer: Answer
    growths: tuple[float, ...]
    change: Estimate
    low: float
    high: float
    improved: bool = False

    @property
    def pairs(self) -> int:
        """How many launch pairs there are."""
        return len(self.growths)


def planned(bar: GateBar, settings: GateSettings, comparisons: int) -> Rule:
    """The rule for one of `comparisons` figures that are judged together.

    The first look waits for as many pairs as a bound at the divided error rate needs.
    """
    alpha = settings.false_alarms / max(1, comparisons)
    shares = _FAIL_SHARES if len(settings.looks) == len(_FAIL_SHARES) else None
    tails = tuple(
        alpha * (shares[index] if shares else 1 / len(settings.looks))
        for index in range(len(settings.looks))
    )
    fewest = math.ceil(-math.log2(tails[0]) - 1e-9)
    looks = tuple(sorted({max(look, fewest) for look in settings.looks}))
    bounds = sign_bounds if settings.robust == "sign" else signed_rank_bounds
    return Rule(bar.margin_or_default, bar.limit, looks, tails[-len(looks) :], bounds=bounds)


def decide(log_ratios: Sequence[float], rule: Rule) -> Decision:
    """Judge the pairs measured so far; between two planned looks the answer is always `continue`.

    Raises ValueError without pairs.
    """
    count = len(log_ratios)
    if count == 0:
        raise ValueError("there is no pair to decide from")
    index = rule.looks.index(count) if count in rule.looks else None
    tail = rule.fail_tails[index] if index is not None else rule.fail_tails[-1]
    low, faster = rule.bounds(log_ratios, tail)
    _, high = rule.bounds(log_ratios, rule.pass_tail)
    answer: Answer = "continue"
    if index is not None or count > rule.looks[-1]:
        if low > math.log1p(rule.margin):
            answer = "fail"
        elif high < math.log1p(rule.limit):
            answer = "pass"
        elif count >= rule.looks[-1]:
            answer = "inconclusive"
    growths = tuple(math.expm1(each) for each in log_ratios)
    improved = answer == "pass" and faster < -math.log1p(rule.margin)
    return Decision(
        answer, growths, _change(log_ratios, rule), math.expm1(low), math.expm1(high), improved
    )


def _change(log_ratios: Sequence[float], rule: Rule) -> Estimate:
    low, high = rule.bounds(log_ratios, 0.025)
    centre, _, _ = hodges_lehmann(log_ratios)
    finite = math.isfinite(low) and math.isfinite(high)
    return Estimate(
        value=math.expm1(centre),
        low=math.expm1(low) if finite else None,
        high=math.expm1(high) if finite else None,
    )


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
