"""What would let a promise be kept that no configuration keeps: tried first, then named."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from optcli.errors import counted
from optcli.measure.queueing import Batching, Curve, Promise
from optcli.measure.queueing.choice import (
    MOST_INSTANCES,
    Choice,
    choose,
    most_carried,
    predict,
    simulated,
)
from optcli.measure.queueing.demand import Demand, offer
from optcli.measure.queueing.formulas import capacity_per_s, load
from optcli.report.wording import number
from optcli.results.plan import Would

_FASTEST = 64.0
_SPEED_STEPS = 8
# A figure that just fails is moved by so much, and so often, until the plan with it holds.
_MOVES = 6
_MOVED = 1.02
# Of what the ingress carries at most.
_OF_INGRESS = 0.9
# Of a rate that is then tried.
_NEAR = 0.01


def would_keep(curve: Curve, demand: Demand, choice: Choice) -> tuple[Would, ...]:
    """What would let the promise be kept where no configuration does: a plan with it keeps it."""
    nearest = choice.tried[0].batching if choice.tried else _smallest(curve, demand)
    remedies = (
        _other_batch(curve, demand),
        _faster(curve, demand, nearest),
        _more_instances(curve, demand),
        _smaller_rate(curve, demand, nearest),
        _longer_promise(curve, demand, nearest),
    )
    return tuple(each for each in remedies if each is not None)


def _smallest(curve: Curve, demand: Demand) -> Batching:
    """The configuration with the fastest call."""
    batch = demand.batch or (curve.sizes[0] if curve.sizes else 1)
    first = offer(curve, demand, batch)
    return replace(first, instances=min(first.instances, demand.instances or MOST_INSTANCES))


def _kept(curve: Curve, demand: Demand) -> Batching | None:
    """The configuration that keeps the promise; None where none does."""
    best = choose(curve, demand).best
    return None if best is None else best.batching


def _said(of: Batching) -> str:
    count = counted(of.instances, "instance")
    return f"batches of at most {of.batch}, a wait of {of.wait_ms:g} ms, {count}"


def _other_batch(curve: Curve, demand: Demand) -> Would | None:
    """Another batch size and wait than those that were given."""
    if demand.batch is None and not demand.waits_ms:
        return None
    of = _kept(curve, replace(demand, batch=None, waits_ms=()))
    return None if of is None else Would(kind="other-batch", figure=of.batch, text=_said(of))


def _faster(curve: Curve, demand: Demand, nearest: Batching) -> Would | None:
    """An artifact that is so many times as fast."""
    free = demand.instances is None
    cap = demand.utilisation / (1 + demand.headroom) if free else 1.0
    rate = demand.process.rate_per_s

    def runs(speed: float) -> bool:
        """Whether the nearest configuration keeps the promise in one run."""
        faster = curve.scaled(1 / speed)
        used = load(rate, faster, nearest.batch, nearest.workers, demand.occupied_ms)
        return used <= cap and demand.promise.kept_by(simulated(faster, demand, nearest))

    if not runs(_FASTEST):
        return None
    slow, fast = 1.0, _FASTEST
    for _ in range(_SPEED_STEPS):
        middle = (slow * fast) ** 0.5
        slow, fast = (slow, middle) if runs(middle) else (middle, fast)
    speed = _moved(
        lambda each: _kept(curve.scaled(1 / each), demand) is not None,
        max(1.01, math.ceil(100 * fast) / 100),
        lambda each: math.ceil(100 * _MOVED * each) / 100,
    )
    if speed is None:
        return None
    text = f"an artifact {speed:.2f} times as fast"
    return Would(kind="faster-artifact", figure=speed, text=text)


def _more_instances(curve: Curve, demand: Demand) -> Would | None:
    if demand.instances is None:
        return None
    of = _kept(curve, replace(demand, instances=None))
    if of is None or of.instances <= demand.instances:
        return None
    return Would(kind="more-instances", figure=of.instances, text=_said(of))


def _smaller_rate(curve: Curve, demand: Demand, nearest: Batching) -> Would | None:
    rate = most_carried(curve, demand, nearest, precision=_NEAR)
    if demand.instances is None:
        full = capacity_per_s(curve, nearest.batch, nearest.workers, demand.occupied_ms)
        rate = min(rate, full * demand.utilisation / (1 + demand.headroom))
    if demand.ingress_ms:
        rate = min(rate, _OF_INGRESS * 1000 / demand.ingress_ms / (1 + demand.headroom))
    planned = demand.process.rate_per_s
    if not 0 < rate < planned:
        return None

    def is_kept(smaller: float) -> bool:
        return (
            _kept(curve, replace(demand, process=demand.process.scaled(smaller / planned))) is not None
        )

    kept_rate = _moved(is_kept, rate, lambda each: each / _MOVED)
    if kept_rate is None:
        return None
    text = f"at most {number(kept_rate)} requests a second"
    return Would(kind="smaller-rate", figure=kept_rate, text=text)


def _longer_promise(curve: Curve, demand: Demand, nearest: Batching) -> Would | None:
    prediction = predict(curve, demand, nearest)
    if prediction.grows:
        return None
    reached = {0.5: prediction.p50_ms, 0.95: prediction.p95_ms, 0.99: prediction.p99_ms}
    limits = demand.promise.limits_ms
    longer = {q: math.ceil(reached[q].high or reached[q].value) for q in limits}
    broken = [q for q, limit in limits.items() if longer[q] > limit]
    if not broken:
        return None

    def promise(factor: float) -> Promise:
        return Promise({q: math.ceil(factor * longer[q]) if q in broken else limits[q] for q in limits})

    factor = _moved(
        lambda each: _kept(curve, replace(demand, promise=promise(each))) is not None,
        1.0,
        lambda each: _MOVED * each,
    )
    if factor is None:
        return None
    new = promise(factor).limits_ms
    worst = max(broken, key=lambda q: new[q] / limits[q])
    text = " and ".join(
        f"p{100 * q:g} {new[q]:g} ms instead of {limits[q]:g} ms" for q in sorted(broken)
    )
    return Would(kind="longer-promise", figure=new[worst], text=f"a promise of {text}")


def _moved(
    is_kept: Callable[[float], bool], figure: float, further: Callable[[float], float]
) -> float | None:
    """The figure, moved further until a plan with it keeps the promise; None where none does."""
    for _ in range(_MOVES):
        if is_kept(figure):
            return figure
        figure = further(figure)
    return None
