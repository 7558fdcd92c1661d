"""One rate under load, judged: what the windows say about the promise."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from optcli.results import Estimate
from optcli.results.loadtest import ClientFigures, LoadWindow
from optcli.results.outcomes import Outcome
from optcli.serving.loadtest.records import WINDOWS, failed_share_low

# The largest p95 of a window over the smallest, up to which a load counts as steady.
STEADY = 1.10
# A queue that grows without bound: p95 rises from window to window to so many times the first.
GROWTH = 1.5
# How late the client may send: milliseconds, and a share of the tightest limit.
LATE_MS, LATE_SHARE = 5.0, 0.05


@dataclass(frozen=True)
class Terms:
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
    terms: Terms,
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
    said = described(percentiles, terms)
    if slow:
        return answer(
            "reject", f"{said}: over the limit in {over} of {len(windows)} windows{_rising(rising)}"
        )
    if client.saturated:
        return answer(
            "inconclusive",
            f"client saturated: it sent {client.lateness_p99_ms:.1f} ms late (p99), at most"
            f" {client.lateness_limit_ms:.1f} ms is allowed",
        )
    if short:
        return answer("inconclusive", f"{said}: the run is too short to accept it")
    if rising:
        return answer("inconclusive", f"{said}: p95 rises from window to window, the queue may grow")
    if over:
        return answer("inconclusive", f"{said}: over the limit in {over} of {len(windows)} windows")
    if not steady and not _surely_kept(percentiles, terms):
        return answer(
            "inconclusive", f"{said}: the windows differ by more than {STEADY - 1:.0%} near the limit"
        )
    return answer("accept", said)


def _surely_over(estimate: Estimate | None, terms: Terms, name: str) -> bool:
    return estimate is not None and estimate.low is not None and estimate.low > terms.limits_ms[name]


def _surely_kept(percentiles: Mapping[str, Estimate | None], terms: Terms) -> bool:
    return all(
        (estimate := percentiles.get(name)) is not None
        and estimate.high is not None
        and estimate.high <= limit
        for name, limit in terms.limits_ms.items()
    )


def described(percentiles: Mapping[str, Estimate | None], terms: Terms) -> str:
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
