"""The answer of a load test: verdicts, notes and the one sentence, from its points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from optcli.results import Estimate, Verdict
from optcli.results.loadtest import (
    LimitFound,
    LoadNote,
    LoadPoint,
    Predicted,
)
from optcli.results.outcomes import Outcome
from optcli.serving.loadtest.judging import Terms

# How far p95 and the limit may be from what was predicted: shares of the prediction.
_P95_OFF, _LIMIT_OFF = 0.25, 0.15
# Up to which load a prediction is held to that.
_HELD_UP_TO = 0.7


def of_points(points: Sequence[LoadPoint], terms: Terms) -> Iterator[Verdict]:
    """On all answers, on each rate that was asked for, and on how near the predictions were."""
    checked, wrong = sum(each.checked for each in points), sum(each.wrong for each in points)
    example = next((each.wrong_example for each in points if each.wrong_example), None)
    compared = f"{checked} answers were compared with the expected ones"
    outcome: Outcome = "reject" if wrong else "accept" if checked else "inconclusive"
    why = f"{wrong} of {checked} compared answers are wrong, such as {example}" if wrong else compared
    yield Verdict(name="answers", outcome=outcome, blocking=True, limit=0, actual=wrong, reason=why)
    for each in points:
        if each.purpose != "rate":
            continue
        yield _judged(f"load {each.rate_per_s:.4g}/s", each, terms)
        for one in each.predicted if not each.client.saturated else ():
            if one.utilisation <= _HELD_UP_TO:
                yield from _of_prediction(each.p95_ms, one, f"at {each.rate_per_s:.4g}/s")


def of_limit(
    limit: LimitFound, points: Sequence[LoadPoint], promised_per_s: float | None
) -> Iterator[Verdict]:
    """Whether the limit carries the promised rate, and how near it is to what was predicted."""
    rate = limit.rate_per_s
    last = points[-1]
    interval = None if rate is None or limit.broken_per_s is None else (rate, limit.broken_per_s)
    outcome: Outcome
    if last.client.saturated and not last.breach:
        outcome, reason = "inconclusive", last.reason
    elif rate is None:
        near = promised_per_s is None or (limit.broken_per_s or 0.0) <= promised_per_s
        outcome = "reject" if near else "inconclusive"
        reason = f"no rate that was tried keeps the promise: {last.reason}"
    elif not limit.confirmed:
        outcome, reason = "inconclusive", f"about {rate:.4g} requests a second, not confirmed"
        if promised_per_s is not None and limit.broken_per_s and limit.broken_per_s <= promised_per_s:
            reason += f"; {limit.broken_per_s:.4g} broke the promise"
    elif promised_per_s is None or rate >= promised_per_s:
        outcome, reason = "accept", f"{rate:.4g} requests a second, confirmed"
    elif limit.broken_per_s is not None and limit.broken_per_s <= promised_per_s:
        outcome = "reject"
        reason = f"{rate:.4g} requests a second are kept, {promised_per_s:g} were promised"
    else:
        outcome = "inconclusive"
        reason = f"the limit is near the promised {promised_per_s:g} requests a second"
    yield Verdict(
        name="limit",
        outcome=outcome,
        blocking=True,
        limit=promised_per_s,
        actual=rate,
        interval=interval,
        reason=reason,
    )
    for by, known in limit.predicted_per_s.items():
        if rate is None or not limit.confirmed or not known:
            continue
        off = rate / known - 1
        near = abs(off) <= _LIMIT_OFF
        yield Verdict(
            name=f"limit as predicted by the {by}",
            outcome="accept" if near else "reject",
            blocking=False,
            limit=_LIMIT_OFF,
            actual=off,
            reason=f"{rate:.4g} requests a second, predicted {known:.4g} ({off:+.0%})",
        )


def now() -> str:
    """The time, as reports have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def overall(verdicts: Sequence[Verdict]) -> Outcome:
    """Reject before inconclusive before accept, of what blocks."""
    outcomes = {each.outcome for each in verdicts if each.blocking}
    order: tuple[Outcome, ...] = ("reject", "inconclusive")
    return next((each for each in order if each in outcomes), "accept")


def sentence(verdicts: Sequence[Verdict]) -> str:
    """The reason of the first verdict that decides, or all that are kept."""
    outcome = overall(verdicts)
    deciding = [each for each in verdicts if each.blocking and each.outcome == outcome]
    if outcome == "accept":
        said = [f"{each.name}: {each.reason}" for each in deciding if each.name != "answers"]
        return "; ".join(said or [each.reason for each in deciding])
    return f"{deciding[0].name}: {deciding[0].reason}"


def notes_of(points: Sequence[LoadPoint]) -> Iterator[LoadNote]:
    """What is to be known of the loads beside their verdicts."""
    for each in points:
        rate = f"{each.rate_per_s:.4g} requests a second"
        if each.client.saturated:
            yield LoadNote(
                kind="client-saturated",
                figures={"rate_per_s": each.rate_per_s, "lateness_p99_ms": each.client.lateness_p99_ms},
                text=f"at {rate} the client sent {each.client.lateness_p99_ms:.1f} ms late (p99): its"
                " delay is part of the latencies",
            )
        if each.grows:
            p95 = [window.p95_ms for window in each.windows]
            yield LoadNote(
                kind="queue-grows",
                figures={"rate_per_s": each.rate_per_s, "p95_ms": p95},
                text=f"at {rate} p95 rises from window to window"
                f" ({', '.join(f'{value:.4g}' for value in p95 if value is not None)} ms): the queue"
                " grows, so that the figures depend on how long the load lasts",
            )
        hits = None if each.server is None else each.server.cache_hit_share
        if hits:
            yield LoadNote(
                kind="cache",
                figures={"hit_share": hits, "rate_per_s": each.rate_per_s},
                text=f"at {rate} the prediction cache answered {hits:.0%}: the model computed the rest",
            )


def _judged(title: str, load: LoadPoint, terms: Terms) -> Verdict:
    name = max(terms.limits_ms, default=None)
    estimate = getattr(load, f"{name}_ms") if name else None
    ends = None if estimate is None or estimate.low is None else (estimate.low, estimate.high)
    return Verdict(
        name=title,
        outcome=load.outcome,
        blocking=True,
        limit=terms.limits_ms[name] if name else None,
        actual=None if estimate is None else estimate.value,
        interval=ends,
        reason=load.reason,
    )


def _of_prediction(p95_ms: Estimate | None, one: Predicted, where: str) -> Iterator[Verdict]:
    if p95_ms is None or one.p95_ms is None:
        return
    off = p95_ms.value / one.p95_ms - 1
    near = abs(off) <= _P95_OFF
    yield Verdict(
        name=f"p95 as predicted by the {one.by} {where}",
        outcome="accept" if near else "reject",
        blocking=False,
        limit=_P95_OFF,
        actual=off,
        reason=f"p95 {p95_ms.value:.4g} ms, predicted {one.p95_ms:.4g} ms ({off:+.0%})",
    )
