"""Priorities in a load: what requests are sent with, and each of them held to the promise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from optcli.errors import UsageError, did_you_mean
from optcli.measure.queueing import Arrivals, Process
from optcli.measure.queueing.arrivals import with_priorities
from optcli.results.loadtest import ClientFigures, PriorityLoad, Served, ServedPriority
from optcli.results.outcomes import Outcome
from optcli.serving.loadtest import judging
from optcli.serving.loadtest.judging import Judged, Terms
from optcli.serving.loadtest.predicting import PredictsOf
from optcli.serving.loadtest.records import QUANTILES, Records, Spans, over_windows
from optcli.serving.planning.traffic import part_of

if TYPE_CHECKING:
    import numpy as np

_PLACE = "--priority"


def shared(served: Served, shares: Mapping[str, float], *, own: bool) -> Served:
    """What is served, with the shares of the traffic that were asked for; empty: as it says itself.

    `own` says that the server names its priorities; another one takes them in the order of `shares`.
    Raises `UsageError` for priorities that it does not have, and shares that do not make one.
    """
    if not shares:
        return served
    total = sum(shares.values())
    if abs(total - 1) > 1e-6 or not all(shares.values()):
        raise UsageError(
            f"found shares of priorities that add up to {total:g}, wanted shares over 0 that sum to 1",
            place=_PLACE,
            hint="give each priority its share of the requests, such as high=0.2,low=0.8",
        )
    known = {each.name: each for each in served.priorities}
    if not own:
        known = {
            name: ServedPriority(name=name, number=number, share=share)
            for number, (name, share) in enumerate(shares.items(), start=1)
        }
    for name in shares:
        if name not in known:
            has = f"its priorities are {', '.join(known)}" if known else "it has no priorities"
            raise UsageError(
                f"the bundle does not know the priority {name!r}: {has}",
                place=_PLACE,
                hint=did_you_mean(name, list(known)) or "plan with --priority, and deploy again",
            )
    chosen = [each for each in known.values() if each.name in shares]
    return served.model_copy(
        update={
            "priorities": tuple(each.model_copy(update={"share": shares[each.name]}) for each in chosen)
        }
    )


def smallest_share(served: Served) -> float:
    """The share of the priority that has the fewest requests; 1 where all are alike."""
    return min((each.share for each in served.priorities), default=1.0)


def drawn(served: Served, times_ms: np.ndarray, seed: int) -> np.ndarray | None:
    """The number of each request's priority, at random by their shares; None where there are none."""
    import numpy as np

    if not served.priorities:
        return None
    shares = [each.share for each in served.priorities]
    places = with_priorities(Arrivals(times_ms), shares, seed).priority
    numbers = np.array([each.number for each in served.priorities])
    chosen: np.ndarray = numbers[places]
    return chosen


def loads(
    served: Served,
    windows: Sequence[Records],
    spans: Spans,
    process: Process,
    terms: Terms,
    client: ClientFigures,
    predict: PredictsOf,
) -> tuple[PriorityLoad, ...]:
    """What each priority saw of a load, and whether its promise was kept."""
    return tuple(
        _load(
            each,
            [window.of_priority(each.number) for window in windows],
            spans,
            process,
            terms,
            client,
            predict,
        )
        for each in served.priorities
    )


def _load(
    priority: ServedPriority,
    windows: Sequence[Records],
    spans: Spans,
    process: Process,
    terms: Terms,
    client: ClientFigures,
    predict: PredictsOf,
) -> PriorityLoad:
    part = part_of(process, priority.share)
    shown = [each.window(spans.window_s) for each in windows]
    percentiles = {name: over_windows(windows, name) for name in QUANTILES}
    failures: dict[str, int] = {}
    for each in windows:
        for cause, count in each.failures.items():
            failures[cause] = failures.get(cause, 0) + count
    short = spans.is_short(part.rate_per_s)
    answer = judging.judged(shown, percentiles, terms, client, short=short, failures=failures)
    requests = sum(each.count for each in windows)
    return PriorityLoad(
        name=priority.name,
        share=priority.share,
        requests=requests,
        good_per_s=sum(each.good(terms.good_ms) for each in windows) / (spans.windows * spans.window_s),
        p50_ms=percentiles["p50"],
        p95_ms=percentiles["p95"],
        p99_ms=percentiles["p99"],
        failed_share=sum(failures.values()) / requests if requests else 0.0,
        failures=failures,
        breach=answer.breach,
        predicted=tuple(predict(part, priority)),
        outcome=answer.outcome,
        reason=answer.reason,
    )


def worst(whole: Judged, parts: Sequence[PriorityLoad], *, wrong: int) -> Judged:
    """The answer for a load that was judged by priority; wrong answers go before everything."""
    if wrong or not parts:
        return whole
    order: tuple[Outcome, ...] = ("reject", "inconclusive")
    deciding = [[each for each in parts if each.outcome == outcome] for outcome in (*order, "accept")]
    first = next(each for each in deciding if each)
    return replace(
        whole,
        breach=any(each.breach for each in parts),
        outcome=first[0].outcome,
        reason="; ".join(f"priority {each.name}: {each.reason}" for each in first),
    )


Highest = Callable[[ServedPriority], float]


def highest(served: Served, of: Highest) -> float:
    """The highest rate of all requests, by that of each priority's own part of them."""
    return min(of(each) / each.share for each in served.priorities)
