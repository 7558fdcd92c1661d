"""Requests that do not all take one way: a prediction cache, and a cascade of two models."""

from __future__ import annotations

from dataclasses import dataclass

from optcli.queueing.arrivals import Process
from optcli.queueing.batching import Batching, Overhead, Simulation
from optcli.queueing.curve import Curve
from optcli.queueing.simulation import NO_OVERHEAD


@dataclass(frozen=True)
class Stage:
    """One model of a cascade: its curve, its server, what comes before and after."""

    curve: Curve
    batching: Batching
    overhead: Overhead = NO_OVERHEAD


@dataclass(frozen=True)
class Mixture:
    """Latencies over all requests, in milliseconds, and the parts they are made of."""

    p50_ms: float
    p95_ms: float
    p99_ms: float
    mean_ms: float
    parts: tuple[Simulation, ...]


def with_cache(
    process: Process,
    hit_share: float,
    hit_ms: float,
    stage: Stage,
    *,
    requests: int = 100_000,
    seed: int = 0,
) -> Mixture:
    """A share of the requests is answered by a cache in `hit_ms`; the others go to the model.

    Hits are independent of each other. Raises `InputError` for a share outside [0, 1).
    """
    raise NotImplementedError


def cascade(
    process: Process,
    cheap: Stage,
    heavy: Stage,
    heavy_share: float,
    *,
    requests: int = 100_000,
    seed: int = 0,
) -> Mixture:
    """Every request goes to the cheap model, a random share of them on to the heavy one."""
    raise NotImplementedError


def break_even_share(cheap_ms: float, heavy_ms: float) -> float:
    """The share below which a cascade takes less time than the heavy model alone; at least 0.

    Both are worker milliseconds per image: t(B) / B. cheap + share * heavy = heavy.
    """
    raise NotImplementedError
