"""Closed formulas of queueing: they prune what is worth simulating. Milliseconds, rates per second."""

from __future__ import annotations

from optcli.queueing.curve import Curve


def capacity_per_s(curve: Curve, batch: int, workers: int = 1, occupied_ms: float = 0.0) -> float:
    """Full batches on all workers: workers * B / (t(B) + overhead that occupies the worker)."""
    raise NotImplementedError


def load(
    rate_per_s: float, curve: Curve, batch: int, workers: int = 1, occupied_ms: float = 0.0
) -> float:
    """rho_B, the rate as a share of the capacity with full batches."""
    raise NotImplementedError


def fewest_instances(
    rate_per_s: float,
    curve: Curve,
    batch: int,
    *,
    utilisation: float = 0.7,
    headroom: float = 0.0,
    concurrency: int = 1,
    occupied_ms: float = 0.0,
) -> int:
    """Instances that carry rate * (1 + headroom) at a load of `utilisation` at most."""
    raise NotImplementedError


def can_ever_carry(rate_per_s: float, curve: Curve, workers: int, utilisation: float = 0.7) -> bool:
    """Whether some batch size can: rate * t_image / workers < utilisation."""
    raise NotImplementedError


def is_feasible(slo_ms: float, curve: Curve, batch: int, overhead_ms: float = 0.0) -> bool:
    """2 * t(B) + overhead <= SLO: a request that just missed a batch waits for it and its own.

    H. Shen et al., Nexus: a GPU cluster engine for accelerating DNN-based video analysis, SOSP 2019.
    """
    raise NotImplementedError


def longest_wait_ms(
    slo_ms: float, curve: Curve, batch: int, rate_per_s: float, overhead_ms: float = 0.0
) -> float:
    """The delay budget: min(SLO - overhead - 2 * t(B), (B - 1) / rate), at least 0."""
    raise NotImplementedError


def greedy_mean_ms(rate_per_s: float, fixed_ms: float, per_image_ms: float) -> float:
    """Upper bound of the mean latency of one worker that takes all that waits, Poisson arrivals.

    Infinite where rate * per_image >= 1. Y. Inoue, Queueing analysis of GPU-based inference servers
    with dynamic batching, Performance Evaluation 147 (2021).
    """
    raise NotImplementedError


def erlang_c(offered: float, workers: int) -> float:
    """How probably a request waits in M/M/c; `offered` = rate * time. 1 where it is unstable."""
    raise NotImplementedError


def mmc_mean_ms(rate_per_s: float, time_ms: float, workers: int = 1) -> float:
    """Mean latency of M/M/c; infinite where it is unstable."""
    raise NotImplementedError


def md1_mean_ms(rate_per_s: float, time_ms: float) -> float:
    """Mean latency of M/D/1; infinite where it is unstable."""
    raise NotImplementedError


def mmc_wait_ms(rate_per_s: float, time_ms: float, workers: int, q: float) -> float:
    """The q-quantile of the wait in M/M/c: t / (c - a) * ln(C / (1 - q)), at least 0."""
    raise NotImplementedError


def fewest_wait_sealed_ms(
    rate_per_s: float, curve: Curve, replicas: int = 1, utilisation: float = 1.0
) -> float:
    """D_min of sealed batching: below it (at utilisation 1) the queue grows without bound.

    b* = r * t_fixed / (u - r * t_image) with r the rate per replica; D_min = (b* - 1) / r, at least
    0. Infinite where u <= r * t_image.
    """
    raise NotImplementedError


def queue_cap_drop_oldest(
    slo_ms: float, curve: Curve, batch: int, workers: int = 1, overhead_ms: float = 0.0
) -> int:
    """(SLO - overhead - t(B)) * capacity: who is served has waited no longer. 0: nothing may wait."""
    raise NotImplementedError


def queue_cap_reject_newest(
    slo_ms: float, curve: Curve, batch: int, workers: int = 1, overhead_ms: float = 0.0
) -> int:
    """The last one let in is served in time: workers * B * (floor((SLO - overhead) / t(B)) - 1)."""
    raise NotImplementedError


def timeout_ms(slo_ms: float, curve: Curve, batch: int, overhead_ms: float = 0.0) -> float:
    """SLO - overhead - t(B): a request that waits longer comes too late. At least 0."""
    raise NotImplementedError
