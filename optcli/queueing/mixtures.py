"""A cascade of two models: every request goes to the first, and a share of them to the second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from optcli.queueing.arrivals import PLACE, Arrivals, Process, kept_at_random
from optcli.queueing.batching import Batching, Overhead, Simulation, percentiles_ms
from optcli.queueing.curve import Curve
from optcli.queueing.quantities import number, share
from optcli.queueing.simulation import NO_OVERHEAD, seeds_of, simulate

if TYPE_CHECKING:
    import numpy as np

_WARM_UP = 0.05


@dataclass(frozen=True)
class Stage:
    """One model: its curve, its server, what comes before and after."""

    curve: Curve
    batching: Batching
    overhead: Overhead = NO_OVERHEAD


@dataclass(frozen=True)
class Mixture:
    """Latencies over all requests, in milliseconds, and the simulations they are made of."""

    p50_ms: float
    p95_ms: float
    p99_ms: float
    mean_ms: float
    parts: tuple[Simulation, ...]


def cascade(
    process: Process,
    cheap: Stage,
    heavy: Stage,
    heavy_share: float,
    *,
    requests: int = 100_000,
    seed: int = 0,
) -> Mixture:
    """Every request goes to the cheap model, a random share of them on to the heavy one.

    A request reaches the heavy model as the cheap one answers it. Raises `InputError` for a share
    outside [0, 1].
    """
    import numpy as np

    share(heavy_share, "the share of the heavy model", PLACE)
    drawn, first, second = seeds_of(seed, 3)
    arrivals = process.draw(requests, drawn)
    cheap_part = simulate(arrivals, cheap.curve, cheap.batching, cheap.overhead, seed=first)
    latencies = cheap_part.latencies_ms.copy()
    goes_on = kept_at_random(arrivals.count, heavy_share, drawn)
    on = np.flatnonzero(goes_on & ~np.isnan(latencies))
    if not on.size:
        return _mixed(latencies, (cheap_part,))
    on = on[np.argsort(cheap_part.finished_ms[on], kind="stable")]
    reached = Arrivals(
        cheap_part.finished_ms[on], None if arrivals.priority is None else arrivals.priority[on]
    )
    heavy_part = simulate(reached, heavy.curve, heavy.batching, heavy.overhead, seed=second)
    latencies[on] += heavy_part.latencies_ms
    return _mixed(latencies, (cheap_part, heavy_part))


def break_even_share(cheap_ms: float, heavy_ms: float) -> float:
    """The share below which a cascade takes less time than the heavy model alone; at least 0.

    Both are worker milliseconds per image, t(B) / B: cheap + share * heavy = heavy.
    """
    number(cheap_ms, "the time per image of the cheap model", PLACE, least=0, above=True)
    number(heavy_ms, "the time per image of the heavy model", PLACE, least=0, above=True)
    return max(0.0, 1 - cheap_ms / heavy_ms)


def _mixed(latencies: np.ndarray, parts: tuple[Simulation, ...]) -> Mixture:
    import numpy as np

    counted = latencies[int(_WARM_UP * latencies.size) :]
    p50, p95, p99 = percentiles_ms(counted, [0.5, 0.95, 0.99])
    dropped = np.isnan(counted)
    return Mixture(
        p50_ms=p50,
        p95_ms=p95,
        p99_ms=p99,
        mean_ms=float(counted[~dropped].mean()) if not dropped.all() else float("nan"),
        parts=parts,
    )
