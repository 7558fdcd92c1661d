"""The highest rate at which a configuration keeps its promise, by bisection with simulations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optcli.queueing.arrivals import Process
from optcli.queueing.batching import Batching, Overhead, Simulation
from optcli.queueing.curve import Curve
from optcli.queueing.simulation import NO_OVERHEAD


@dataclass(frozen=True)
class Promise:
    """A service level: milliseconds by quantile ({0.95: 120.0}), and the share that may be dropped.

    Raises `InputError` for an empty promise and for quantiles outside (0, 1).
    """

    limits_ms: Mapping[float, float]
    error_budget: float = 0.001

    def kept_by(self, simulation: Simulation) -> bool:
        """Whether every percentile, the drops and a queue that does not grow keep it."""
        raise NotImplementedError


def highest_rate(
    process: Process,
    curve: Curve,
    batching: Batching,
    promise: Promise,
    overhead: Overhead = NO_OVERHEAD,
    *,
    runs: int = 2,
    requests: int = 50_000,
    seed: int = 0,
    precision: float = 0.01,
) -> float:
    """Requests a second, as the mean of the process; 0 where no rate keeps the promise.

    The process is scaled; medians over `runs` seeds decide. `precision` is a share of the rate.
    """
    raise NotImplementedError
