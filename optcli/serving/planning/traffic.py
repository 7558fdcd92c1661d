"""The traffic that a plan is made for, as a process of arrivals."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from optcli.errors import UsageError
from optcli.measure.queueing import Bursts, Cameras, Gamma, Poisson, Process, Trace
from optcli.measure.queueing.arrivals import kept_at_random, parse
from optcli.serving.planning.settings import PlanSettings

_TRACE = "trace:"


def part_of(process: Process, share: float, seed: int = 0) -> Process:
    """The requests of a process that a share of them is, each by chance.

    A random part of independent requests, or of bursts, is of the same kind. Other gaps are taken as
    gamma distributed with the mean and the variance that they have. `seed` decides which requests of a
    trace stay.
    """
    if share == 1 or isinstance(process, Poisson | Bursts):
        return process.scaled(share)
    if isinstance(process, Trace):
        return Trace(process.times_ms[kept_at_random(int(process.times_ms.size), share, seed)])
    cv2 = process.cv2 if isinstance(process, Gamma) else 0.0
    return Gamma(process.rate_per_s * share, share * cv2 + 1 - share)


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
    return Traffic(mean, lowest, part_of(planned, 1 - settings.cache_hit_rate, settings.seed))


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
