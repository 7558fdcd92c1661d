"""Batching queues, simulated: one run, or several with other seeds."""

from __future__ import annotations

from optcli.queueing.arrivals import Arrivals, Process
from optcli.queueing.batching import Batching, Overhead, Prediction, Simulation
from optcli.queueing.curve import Curve

NO_OVERHEAD = Overhead()


def simulate(
    arrivals: Arrivals,
    curve: Curve,
    batching: Batching,
    overhead: Overhead = NO_OVERHEAD,
    *,
    seed: int = 0,
    warm_up: float = 0.05,
) -> Simulation:
    """Send every request through the server. The same arguments give the same result.

    `seed` decides what is drawn of a measured curve and where sealed batching sends a request. The
    first `warm_up` of the requests, as a share, do not count. Raises `InputError`.
    """
    raise NotImplementedError


def replicate(
    process: Process,
    curve: Curve,
    batching: Batching,
    overhead: Overhead = NO_OVERHEAD,
    *,
    runs: int = 4,
    requests: int = 100_000,
    seed: int = 0,
    warm_up: float = 0.05,
) -> Prediction:
    """`runs` simulations of `requests` each, with seeds that follow from `seed`."""
    raise NotImplementedError
