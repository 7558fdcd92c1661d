"""The traffic that a plan is made for, as a process of arrivals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from optcli.errors import UsageError
from optcli.queueing import Arrivals, Bursts, Cameras, Levels, Poisson, Process, Trace
from optcli.queueing.arrivals import kept_at_random, parse
from optcli.serving.settings import PlanSettings

_TRACE = "trace:"


@dataclass(frozen=True)
class Misses:
    """What is left of a process when a share of its requests goes elsewhere, as to a cache."""

    process: Process
    hit_share: float

    @property
    def rate_per_s(self) -> float:
        return self.process.rate_per_s * (1 - self.hit_share)

    def draw(self, count: int, seed: int) -> Arrivals:
        """About `count` requests that are left."""
        every = self.process.draw(round(count / (1 - self.hit_share)), seed)
        return every.only(kept_at_random(every.count, 1 - self.hit_share, seed + 1))

    def scaled(self, factor: float) -> Misses:
        return replace(self, process=self.process.scaled(factor))


@dataclass(frozen=True)
class Traffic:
    """Requests as they come, and those that the model sees at the rate that is planned for.

    `mean_per_s` is what comes on average, `lowest_per_s` the lowest level. `planned` has the peak
    factor in it, and no requests that a cache answers.
    """

    mean_per_s: float
    lowest_per_s: float
    planned: Process


def traffic_of(settings: PlanSettings, rate_per_s: float | None = None) -> Traffic:
    """The traffic of a plan file; `rate_per_s` stands in where it names none.

    Raises `UsageError` where neither does, `InputError` for a trace or a form that cannot be read.
    """
    came = _process(settings, rate_per_s)
    mean = lowest = came.rate_per_s
    if isinstance(settings.rate_per_s, tuple):
        total = sum(level.seconds for level in settings.rate_per_s)
        mean = sum(level.rate_per_s * level.seconds for level in settings.rate_per_s) / total
        lowest = min(level.rate_per_s for level in settings.rate_per_s)
    planned = came.scaled(settings.peak_factor) if settings.peak_factor > 1 else came
    if settings.cache_hit_rate:
        planned = Misses(planned, settings.cache_hit_rate)
    return Traffic(mean, lowest, planned)


def part_of(process: Process, share: float) -> Process:
    """The requests of a process that a share of them is, drawn at random."""
    if share == 1 or isinstance(process, Poisson | Bursts | Levels):
        return process.scaled(share)  # a random part of these is one of them
    return Misses(process, 1 - share)


def _process(settings: PlanSettings, rate_per_s: float | None) -> Process:
    rate = settings.rate_per_s
    if isinstance(rate, tuple):
        return Poisson(max(level.rate_per_s for level in rate))
    cameras = settings.cameras
    if cameras is not None:
        return Cameras(cameras.count, cameras.frames_per_s, cameras.stride, cameras.jitter_ms)
    known = rate or rate_per_s
    if settings.arrivals.startswith(_TRACE):
        trace = Trace.read(Path(settings.arrivals.removeprefix(_TRACE)))
        return trace.scaled(known / trace.rate_per_s) if known else trace
    if known is None:
        raise UsageError(
            "the plan has no rate",
            place="--rate",
            hint="say how many requests come a second, such as --rate 600; with --instances it may"
            " be left out: the answer is then the rate that these carry",
        )
    return parse(settings.arrivals, known)
