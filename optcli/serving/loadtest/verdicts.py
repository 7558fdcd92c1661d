"""What a load says about the promise: each rate judged by its windows, and a test by its rates."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

from optcli.results import Estimate, Verdict
from optcli.results.loadtest import (
    ClientFigures,
    LimitFound,
    LoadNote,
    LoadPoint,
    LoadWindow,
    Predicted,
)
from optcli.results.outcomes import Outcome
from optcli.serving.loadtest.records import WINDOWS, failed_share_low

# The largest p95 of a window over the smallest, up to which a load counts as steady.
STEADY = 1.10
# A queue that grows without bound: p95 rises from window to window to so many times the first.
GROWTH = 1.5
# How late the client may send: milliseconds, and a share of the tightest limit.
LATE_MS, LATE_SHARE = 5.0, 0.05
# How far p95 and the limit may be from what was predicted: shares of the prediction.
_P95_OFF, _LIMIT_OFF = 0.25, 0.15
# Up to which load a prediction is held to that.
_HELD_UP_TO = 0.7


@dataclass(frozen=True)
class LoadTerms:
    """The promise: milliseconds by percentile (`p95`), and the share of requests that may fail."""

    limits_ms: Mapping[str, float]
    error_budget: float = 0.001

    @property
    def late_ms(self) -> float:
        """How late the client may send at the 99th percentile."""
        return max(LATE_MS, LATE_SHARE * min(self.limits_ms.values(), default=0.0))

    @property
    def good_ms(self) -> float | None:
        """The latency up to which an answer counts as good: the limit of the highest percentile."""
        return self.limits_ms[max(self.limits_ms)] if self.limits_ms else None

    def over_in(self, window: LoadWindow, margin_ms: float = 0.0) -> set[str]:
        """The percentiles of a window that are over their limits, all where nothing was answered."""
        if not window.requests:
            return set()
        values = {name: getattr(window, f"{name}_ms") for name in self.limits_ms}
        return {
            name
            for name, limit in self.limits_ms.items()
            if (value := values[name]) is None or value > limit + margin_ms
        }


@dataclass(frozen=True)
class Judged:
    """What the windows say: see `LoadPoint`."""

    steady: bool
    grows: bool
    breach: bool
    outcome: Outcome
    reason: str


def is_steady(windows: Sequence[LoadWindow]) -> bool:
    """Whether p95 is about the same in every window."""
    values = [each.p95_ms for each in windows]
    known = [value for value in values if value is not None]
    return bool(known) and len(known) == len(values) and max(known) <= STEADY * min(known)


def grows(windows: Sequence[LoadWindow]) -> bool:
    """Whether p95 rises from window to window as with a queue that grows without bound."""
    known = [each.p95_ms for each in windows if each.p95_ms is not None]
    if len(known) < WINDOWS or len(known) < len(windows):
        return False
    rises = all(later > earlier for earlier, later in pairwise(known))
    return rises and known[-1] >= GROWTH * known[0]


def judged(
    windows: Sequence[LoadWindow],
    percentiles: Mapping[str, Estimate | None],
    terms: LoadTerms,
    client: ClientFigures,
    *,
    short: bool,
    wrong: int = 0,
    checked: int = 0,
    wrong_example: str | None = None,
    failures: Mapping[str, int] | None = None,
) -> Judged:
    """The answer for one rate.

    A wrong answer rejects whatever the speed. Two of three windows over a limit, or more failures than
    the budget allows, are a breach. A client that sends late, a load that is not steady near the limit
    and a short run decide nothing else. A short run rejects only what is surely broken, a late client
    only what is over the limit by twice of what it was late: the answer may have been read late too.
    """
    steady, rising = is_steady(windows), grows(windows)
    requests = sum(each.requests for each in windows)
    failed = sum(each.failed for each in windows)
    share = failed / requests if requests else 1.0
    failing = share > terms.error_budget
    failing_surely = failed_share_low(failed, requests) > terms.error_budget
    breach = failing_surely if short else failing
    margin_ms = 2 * client.lateness_p99_ms if client.saturated else 0.0
    late = [terms.over_in(each, margin_ms) for each in windows]
    over = sum(map(bool, late))
    slow = over >= math.ceil(2 * len(windows) / 3)
    if short:
        names = set().union(*late)
        slow = slow and (rising or any(_surely_over(percentiles.get(n), terms, n) for n in names))
    causes = ", ".join(f"{cause} {count}" for cause, count in (failures or {}).items())

    def answer(outcome: Outcome, reason: str) -> Judged:
        # Latencies of a late client rise with it, and say nothing of a queue.
        return Judged(steady, rising and not client.saturated, breach or slow, outcome, reason)

    if wrong:
        return answer(
            "reject", f"{wrong} of {checked} compared answers are wrong, such as {wrong_example}"
        )
    if not requests:
        return answer("inconclusive", "no request was planned for the windows")
    if breach:
        return answer(
            "reject",
            f"{failed} of {requests} requests were not answered ({causes}): {100 * share:.2f} %, and at"
            f" most {100 * terms.error_budget:g} % may",
        )
    if not terms.limits_ms:
        if failing:
            return answer(
                "inconclusive", f"{failed} of {requests} requests were not answered ({causes})"
            )
        return answer("accept", "answers are right, and no latency was promised")
    description = described(percentiles, terms)
    if slow:
        return answer(
            "reject",
            f"{description}: over the limit in {over} of {len(windows)} windows{_rising(rising)}",
        )
    if client.saturated:
        return answer(
            "inconclusive",
            f"client saturated: it sent {client.lateness_p99_ms:.1f} ms late (p99), at most"
            f" {client.lateness_limit_ms:.1f} ms is allowed",
        )
    if short:
        return answer("inconclusive", f"{description}: the run is too short to accept it")
    if rising:
        return answer(
            "inconclusive", f"{description}: p95 rises from window to window, the queue may grow"
        )
    if over:
        return answer(
            "inconclusive", f"{description}: over the limit in {over} of {len(windows)} windows"
        )
    if not steady and not _surely_kept(percentiles, terms):
        return answer(
            "inconclusive",
            f"{description}: the windows differ by more than {STEADY - 1:.0%} near the limit",
        )
    return answer("accept", description)


def _surely_over(estimate: Estimate | None, terms: LoadTerms, name: str) -> bool:
    return estimate is not None and estimate.low is not None and estimate.low > terms.limits_ms[name]


def _surely_kept(percentiles: Mapping[str, Estimate | None], terms: LoadTerms) -> bool:
    return all(
        (estimate := percentiles.get(name)) is not None
        and estimate.high is not None
        and estimate.high <= limit
        for name, limit in terms.limits_ms.items()
    )


def described(percentiles: Mapping[str, Estimate | None], terms: LoadTerms) -> str:
    """The promised percentiles with their intervals and limits, in words."""
    parts = []
    for name, limit in terms.limits_ms.items():
        estimate = percentiles.get(name)
        if estimate is None:
            parts.append(f"too few requests for {name}")
            continue
        ends = "" if estimate.low is None else f" [{estimate.low:.3g}, {estimate.high:.3g}]"
        parts.append(f"{name} {estimate.value:.4g} ms{ends} of {limit:g} ms")
    return ", ".join(parts)


def _rising(rising: bool) -> str:
    return ", and it rises from window to window: the queue grows" if rising else ""


def of_points(points: Sequence[LoadPoint], terms: LoadTerms) -> Iterator[Verdict]:
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
        sentences = [f"{each.name}: {each.reason}" for each in deciding if each.name != "answers"]
        return "; ".join(sentences or [each.reason for each in deciding])
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


def _judged(title: str, load: LoadPoint, terms: LoadTerms) -> Verdict:
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
