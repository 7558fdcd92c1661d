"""What came of each request of a load, and its statistics over windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from optcli.results import Estimate
from optcli.results.loadtest import LoadWindow
from optcli.results.statistics import percentile, percentile_over_rounds

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
# The usual measurement: latencies follow each other so closely that shorter windows scatter too much.
SETTLE_S, WINDOWS, WINDOW_S, WINDOW_REQUESTS = 5.0, 3, 10.0, 1000


@dataclass(frozen=True)
class Spans:
    """When is measured: after `settle_s` seconds, `windows` windows of `window_s` seconds each."""

    settle_s: float
    windows: int
    window_s: float

    @classmethod
    def usual(cls, rate_per_s: float, windows: int = WINDOWS) -> Spans:
        """5 s to settle, then windows of at least 10 s and 1000 requests."""
        return cls(SETTLE_S, windows, max(WINDOW_S, WINDOW_REQUESTS / rate_per_s))

    def is_short(self, rate_per_s: float) -> bool:
        """Whether the windows are fewer or shorter than those that can accept something."""
        return self.windows < WINDOWS or self.window_s < Spans.usual(rate_per_s).window_s

    @property
    def seconds(self) -> float:
        """How long requests are sent."""
        return self.settle_s + self.windows * self.window_s

    def bounds_ms(self) -> list[tuple[float, float]]:
        """Begin and end of each window, in milliseconds from the start."""
        begins = [self.settle_s + index * self.window_s for index in range(self.windows)]
        return [(1000 * begin, 1000 * (begin + self.window_s)) for begin in begins]


@dataclass(frozen=True, eq=False)
class Records:
    """All requests of a load, each array [requests], in the order of their planned times.

    Times are milliseconds from the start: `sent_ms` is NaN where a request was never sent,
    `finished_ms` where nothing came of it. `cause` is the index in `causes` of why it failed, 0 where
    it was answered. `wrong` marks answers that are not the expected ones.
    """

    planned_ms: np.ndarray
    sent_ms: np.ndarray
    finished_ms: np.ndarray
    cause: np.ndarray
    wrong: np.ndarray
    causes: tuple[str, ...] = ("",)

    @classmethod
    def read(cls, path: Path) -> Records:
        """What the client wrote."""
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files if name != "causes"}
            return cls(**arrays, causes=tuple(map(str, archive["causes"])))

    def planned_within(self, begin_ms: float, end_ms: float) -> Records:
        """The requests that were planned for a time from `begin_ms` on and before `end_ms`."""
        return self.only((self.planned_ms >= begin_ms) & (self.planned_ms < end_ms))

    def only(self, chosen: np.ndarray) -> Records:
        """Some of the requests: those of a mask, or those at these places."""
        return Records(
            self.planned_ms[chosen],
            self.sent_ms[chosen],
            self.finished_ms[chosen],
            self.cause[chosen],
            self.wrong[chosen],
            self.causes,
        )

    @property
    def count(self) -> int:
        """How many requests there are."""
        return int(self.planned_ms.size)

    @property
    def answered(self) -> np.ndarray:
        """Which requests were answered: a mask [requests]."""
        mask: np.ndarray = self.cause == 0
        return mask

    @property
    def latencies_ms(self) -> np.ndarray:
        """Latencies of the requests that were answered or timed out, from the planned time.

        What the server refuses at once has no latency; leaving out what it never answers would hide
        that it stalls.
        """
        counted = self.answered | (self.cause == self._number("timeout"))
        latencies: np.ndarray = (self.finished_ms - self.planned_ms)[counted]
        return latencies

    @property
    def failures(self) -> dict[str, int]:
        """Requests that were not answered, by cause."""
        counts = np.bincount(self.cause, minlength=len(self.causes))
        return {cause: int(n) for cause, n in zip(self.causes[1:], counts[1:], strict=False) if n}

    @property
    def lateness_p99_ms(self) -> float:
        """How late the client sent, at the 99th percentile; 0 where nothing was sent."""
        late = (self.sent_ms - self.planned_ms)[~np.isnan(self.sent_ms)]
        return max(0.0, percentile(late, 0.99)) if late.size else 0.0

    def good(self, limit_ms: float | None) -> int:
        """Answers that are right and came within a limit."""
        chosen = self.answered & ~self.wrong
        if limit_ms is not None:
            with np.errstate(invalid="ignore"):
                chosen &= self.finished_ms - self.planned_ms <= limit_ms
        return int(np.count_nonzero(chosen))

    def window(self, seconds: float) -> LoadWindow:
        """These requests as one window."""
        latencies = self.latencies_ms
        answered = int(self.answered.sum())
        return LoadWindow(
            seconds=seconds,
            requests=self.count,
            answered=answered,
            failed=self.count - answered,
            **{
                f"{name}_ms": percentile(latencies, q) if latencies.size else None
                for name, q in QUANTILES.items()
            },
        )

    def _number(self, cause: str) -> int:
        return self.causes.index(cause) if cause in self.causes else -1


def windows_of(records: Records, spans: Spans) -> list[Records]:
    """The requests of each window."""
    return [records.planned_within(begin, end) for begin, end in spans.bounds_ms()]


def over_windows(windows: Sequence[Records], name: str) -> Estimate | None:
    """A percentile over all windows, with an interval that holds although a window's are alike.

    None where the requests are too few for the percentile.
    """
    arrays = [each.latencies_ms for each in windows]
    arrays = [each for each in arrays if each.size]
    return percentile_over_rounds(arrays, QUANTILES[name]) if arrays else None


def failed_share_low(failed: int, requests: int) -> float:
    """The lower 97.5 % bound of the share that fails (Clopper and Pearson)."""
    if not failed:
        return 0.0
    from scipy.special import betaincinv

    return float(betaincinv(failed, requests - failed + 1, 0.025))


def share_interval(count: int, of: int) -> tuple[float, float]:
    """The 95 % interval of a share (Clopper and Pearson)."""
    return failed_share_low(count, of), 1 - failed_share_low(of - count, of)
