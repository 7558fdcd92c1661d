"""Closed formulas of queueing: they prune what is worth simulating. Milliseconds, rates per second.

All raise `InputError` for numbers that make no sense. `workers` is instances times concurrency.
"""

from __future__ import annotations

import math

from optcli.errors import InputError
from optcli.measure.queueing import number, share, whole
from optcli.measure.queueing.curve import PLACE as CURVE
from optcli.measure.queueing.curve import Curve

PLACE = "plan"
# Forgives a quotient that rounding left a hair beside a whole number.
_HAIR = 1e-9
# What an ingress passes while it refuses others, as a share of what it passes otherwise.
_WHILE_REFUSING = 0.75


def capacity_per_s(
    curve: Curve,
    batch: int,
    workers: int = 1,
    *,
    ingress_ms: float = 0.0,
) -> float:
    """Full batches on all workers: workers * B / t(B), and at most 1 / ingress.

    `ingress_ms` is the time between two requests that the ingress passes at most; 0: there is none.
    """
    carried = 1000 * workers * batch / curve.time_ms(batch)
    return min(carried, 1000 / ingress_ms) if ingress_ms else carried


def load(
    rate_per_s: float,
    curve: Curve,
    batch: int,
    workers: int = 1,
    *,
    ingress_ms: float = 0.0,
) -> float:
    """rho_B, the rate as a share of the capacity with full batches."""
    return _rate(rate_per_s) / capacity_per_s(curve, batch, workers, ingress_ms=ingress_ms)


def fewest_instances(
    rate_per_s: float,
    curve: Curve,
    batch: int,
    *,
    utilisation: float = 0.7,
    headroom: float = 0.0,
    concurrency: int = 1,
) -> int:
    """Instances that carry rate * (1 + headroom) at a load of `utilisation` at most.

    By Little's law rate * t(B) / B workers are busy.
    """
    usable = capacity_per_s(curve, batch, concurrency) * _utilisation(utilisation)
    needed = _rate(rate_per_s) * (1 + number(headroom, "the headroom", PLACE, least=0)) / usable
    return max(1, math.ceil(needed - _HAIR))


def delay_budget_ms(slo_ms: float, curve: Curve, batch: int, overhead_ms: float = 0.0) -> float:
    """SLO - overhead - 2 * t(B), at least 0: a request may wait for another batch and for its own."""
    return max(0.0, _slo(slo_ms) - overhead_ms - 2 * curve.time_ms(batch))


def longest_wait_ms(
    slo_ms: float,
    curve: Curve,
    batch: int,
    rate_per_s: float,
    overhead_ms: float = 0.0,
) -> float:
    """The delay budget, and no more than (B - 1) / rate.

    Whoever waits longer than the batch takes to fill gains nothing.
    """
    budget = delay_budget_ms(slo_ms, curve, batch, overhead_ms)
    return min(budget, 1000 * (batch - 1) / _rate(rate_per_s))


def fewest_wait_sealed_ms(
    rate_per_s: float,
    curve: Curve,
    replicas: int = 1,
    utilisation: float = 1.0,
    *,
    batch: int | None = None,
    concurrency: int = 1,
) -> float:
    """D_min of sealed batching: below it (at utilisation 1) the queue grows without bound.

    The batch b* that must form is the smallest with r * t(b) <= u * b, where r is the rate of a
    replica; on a line it is r * t_fixed / (u - r * t_image). A batch gathers 1 + r * D requests, so
    that D_min = (b* - 1) / r. Infinite where no batch of at most `batch` is large enough: such a
    configuration is unstable at any wait. A curve of one point forms no batches: 0 or infinite.
    """
    carried = _utilisation(utilisation) * concurrency
    per_ms = _rate(rate_per_s) / 1000 / whole(replicas, "the number of replicas", PLACE, least=1)
    if not curve.between and (curve.fixed_ms is None or curve.per_image_ms is None):
        if curve.sizes[0] != 1:
            raise InputError(
                f"the curve has one point, batch {curve.sizes[0]}",
                place=CURVE,
                hint="give the times of two batch sizes or more",
            )
        return 0.0 if per_ms * curve.time_ms(1) < carried else math.inf
    needed = _batch_that_must_form(per_ms, curve, carried)
    if batch is not None and needed > batch:
        return math.inf
    return max(0.0, (needed - 1) / per_ms)


def _batch_that_must_form(per_ms: float, curve: Curve, carried: float) -> float:
    """The smallest b, 1 or more, with per_ms * t(b) <= carried * b; infinite for none."""
    below = 1.0
    for size in curve.knots:
        if size > below and _is_carried(per_ms, curve, size, carried):
            return _between(per_ms, curve, (int(below), size), carried)
        if size == 1 and _is_carried(per_ms, curve, 1, carried):
            return 1.0
        below = float(size)
    # From the last point on, and for a line from 1 on, the curve is a line; of one point it ends there.
    if curve.per_image_ms is None:
        return math.inf
    each = curve.per_image_ms
    fixed = curve.time_ms(int(below)) - each * below
    left = carried - per_ms * each
    return max(below, per_ms * fixed / left) if left > 0 else math.inf


def _is_carried(per_ms: float, curve: Curve, batch: int, carried: float) -> bool:
    return per_ms * curve.time_ms(batch) <= carried * batch


def _between(per_ms: float, curve: Curve, sizes: tuple[int, int], carried: float) -> float:
    """Where the straight part of a curve between two batch sizes begins to be carried."""
    low, high = sizes
    start = curve.time_ms(low)
    each = (curve.time_ms(high) - curve.time_ms(low)) / (high - low)
    if per_ms * start <= carried * low:
        return float(low)
    # The first size is not carried and the last one is, so that carried > per_ms * each.
    return min(float(high), per_ms * (start - each * low) / (carried - per_ms * each))


def queue_cap(
    slo_ms: float,
    curve: Curve,
    batch: int,
    workers: int = 1,
    overhead_ms: float = 0.0,
    *,
    ingress_ms: float = 0.0,
) -> int:
    """The last one let in is served in time: workers * B * (floor((SLO - overhead) / t(B)) - 1).

    It is at most `ingress_cap` where requests pass an ingress. 0: nothing may wait.
    """
    batches = math.floor((_slo(slo_ms) - overhead_ms) / curve.time_ms(batch) + _HAIR)
    cap = max(0, workers * batch * (batches - 1))
    return min(cap, ingress_cap(slo_ms, curve, batch, ingress_ms, overhead_ms)) if ingress_ms else cap


def ingress_cap(
    slo_ms: float, curve: Curve, batch: int, ingress_ms: float, overhead_ms: float = 0.0
) -> int:
    """0.75 (SLO - overhead - t(B)) / ingress: of so many at the ingress the last one is served in time.

    An ingress whose queue is full works for those that it refuses, too, and passes the rest more
    slowly: about 0.8 of it at 1.5 times the highest rate (ViT-tiny in `benchmarks/serving_limits.py`).
    Raises `InputError` where `ingress_ms` is not above 0.
    """
    each = number(ingress_ms, "the work at the ingress", PLACE, least=0, above=True)
    return int(_WHILE_REFUSING * timeout_ms(slo_ms, curve, batch, overhead_ms) / each + _HAIR)


def timeout_ms(slo_ms: float, curve: Curve, batch: int, overhead_ms: float = 0.0) -> float:
    """SLO - overhead - t(B): a request that waits longer comes too late. At least 0."""
    return max(0.0, _slo(slo_ms) - overhead_ms - curve.time_ms(batch))


def _rate(rate_per_s: float) -> float:
    return number(rate_per_s, "the rate", PLACE, least=0, above=True)


def _slo(slo_ms: float) -> float:
    return number(slo_ms, "the SLO", PLACE, least=0, above=True)


def _utilisation(value: float) -> float:
    return share(number(value, "the utilisation", PLACE, least=0, above=True), "the utilisation", PLACE)
