"""The traffic that a plan is made for, as a process of arrivals."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from optcli.errors import UsageError
from optcli.queueing import (
    Arrivals,
    Bursts,
    Cameras,
    Constant,
    Gamma,
    Levels,
    Part,
    Poisson,
    Process,
    Trace,
)
from optcli.queueing.arrivals import kept_at_random, parse, without_others
from optcli.serving.planning.settings import PlanSettings

_TRACE = "trace:"
# A cache that answers more leaves independent requests of a camera.
_NEARLY_ALL = 0.99


@dataclass(frozen=True)
class Misses:
    """What is left of a process when a share of its requests goes elsewhere, as to a cache."""

    process: Gamma | Constant | Cameras
    hit_share: float

    @property
    def rate_per_s(self) -> float:
        return self.process.rate_per_s * (1 - self.hit_share)

    def draw(self, count: int, seed: int) -> Arrivals:
        """About `count` requests that are left."""
        if isinstance(self.process, Cameras):
            every = self.process.draw(round(count / (1 - self.hit_share)), seed)
            return every.only(kept_at_random(every.count, 1 - self.hit_share, seed + 1))
        import numpy as np

        # A gap between two that are left is the sum of as many gaps as went elsewhere between, and one.
        gaps = np.random.default_rng([seed, 6]).geometric(1 - self.hit_share, count).astype(float)
        if isinstance(self.process, Gamma):
            cv2 = self.process.cv2
            gaps = cv2 * np.random.default_rng(seed).standard_gamma(gaps / cv2)
        return Arrivals(np.cumsum(gaps) * (1000 / self.process.rate_per_s))

    def scaled(self, factor: float) -> Misses:
        return replace(self, process=self.process.scaled(factor))


def missing(process: Process, hit_share: float, seed: int) -> Process:
    """What is left of a process when a share of its requests goes elsewhere, each by chance.

    Exactly where the process is one of optcli's; `seed` decides which requests of a trace stay.
    """
    if isinstance(process, Trace):
        kept = kept_at_random(int(process.times_ms.size), 1 - hit_share, seed)
        return Trace(process.times_ms[kept])
    if isinstance(process, Gamma | Constant):
        return Misses(process, hit_share)
    if isinstance(process, Cameras):
        # So few of so many frames are independent of each other, and drawing them all takes memory.
        few = Poisson(process.rate_per_s * (1 - hit_share))
        return few if hit_share > _NEARLY_ALL else Misses(process, hit_share)
    # Fewer of independent requests are independent requests, in bursts as well.
    return process.scaled(1 - hit_share)


@dataclass(frozen=True)
class Traffic:
    """Requests as they come, and those that the model sees at the rate that is planned for.

    `mean_per_s` is what comes on average, `lowest_per_s` the lowest level. `planned` has the peak
    factor in it, and no requests that a cache answers. Where the ingress' work is known, those pass it
    as well.
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
    hits = settings.cache_hit_rate
    if hits and settings.overhead.ingress_ms:
        planned = Part(planned, 1 - hits, missing(planned, hits, settings.seed))
    elif hits:
        planned = missing(planned, hits, settings.seed)
    return Traffic(mean, lowest, planned)


def part_of(process: Process, share: float, seed: int = 0) -> Process:
    """The requests of a process that a share of them is, drawn at random; `seed` as in `missing`."""
    if share == 1 or isinstance(process, Poisson | Bursts | Levels):
        return process.scaled(share)  # a random part of these is one of them
    if isinstance(process, Misses):
        return missing(process.process, 1 - share * (1 - process.hit_share), seed)
    if isinstance(process, Part):
        own = part_of(process.alone, share, seed)
        return Part(part_of(process.whole, share, seed), process.share, own)
    return missing(process, 1 - share, seed)


def beside_others(process: Process, share: float, seed: int = 0) -> Process:
    """The same part, which passes an ingress together with all other requests of the process."""
    own = without_others(process)
    if share == 1:
        return process
    if isinstance(process, Part):
        return Part(process.whole, process.share * share, part_of(own, share, seed))
    return Part(process, share, part_of(own, share, seed))


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
