"""What would let a promise be kept that no configuration keeps: tried first, then named."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from optcli.queueing import Batching, Curve, Promise
from optcli.queueing.choice import MOST_INSTANCES, Choice, choose, most_carried, predict, simulated
from optcli.queueing.demand import Demand, offer
from optcli.queueing.formulas import capacity_per_s, load
from optcli.report.wording import number
from optcli.results.plan import Would
from optcli.serving.planning.traffic import part_of

_SPEED_STEPS = 8
_FASTEST = 64.0
# A figure that just fails is moved by so much, and so often, until the plan with it holds.
_MOVES = 6
_MOVED = 1.02
# Of what the ingress carries at most.
_OF_INGRESS = 0.9
# From which load of the ingress on a second server is tried, and how many more than its load asks for.
_BUSY_INGRESS = 0.5
_MORE_SERVERS = 3
# Of a rate that is then tried.
_NEAR = 0.01


def would_keep(curve: Curve, demand: Demand, choice: Choice) -> tuple[Would, ...]:
    """What would let the promise be kept where no configuration does: a plan with it keeps it."""
    nearest = choice.tried[0].batching if choice.tried else _smallest(curve, demand)
    remedies = (
        _longer_wait(curve, demand),
        _other_batch(curve, demand),
        _faster(curve, demand, nearest),
        _more_instances(curve, demand),
        _more_servers(curve, demand),
        _smaller_rate(curve, demand, nearest),
        _longer_promise(curve, demand, nearest),
    )
    return tuple(each for each in remedies if each is not None)


def _smallest(curve: Curve, demand: Demand) -> Batching:
    """The configuration with the fastest call."""
    batch = demand.batch or (curve.sizes[0] if curve.sizes else 1)
    first = offer(curve, demand, batch)
    return replace(first, instances=min(first.instances, demand.instances or MOST_INSTANCES))


def _longer_wait(curve: Curve, demand: Demand) -> Would | None:
    """For sealed batches whose wait was given."""
    if demand.semantics != "sealed" or demand.wait_ms is None:
        return None
    best = choose(curve, replace(demand, wait_ms=None)).best
    if best is None or best.batching.wait_ms <= demand.wait_ms:
        return None
    wait_ms = best.batching.wait_ms
    return Would(
        kind="longer-wait",
        figure=wait_ms,
        text=f"a wait of {wait_ms:g} ms instead of {demand.wait_ms:g} ms, in batches of at most"
        f" {best.batching.batch} on {_count(best.batching.instances)}",
    )


def _other_batch(curve: Curve, demand: Demand) -> Would | None:
    """Another batch size and wait than those that were given."""
    if demand.batch is None and demand.wait_ms is None:
        return None
    best = choose(curve, replace(demand, batch=None, wait_ms=None)).best
    if best is None:
        return None
    of = best.batching
    return Would(
        kind="other-batch",
        figure=of.batch,
        text=f"batches of at most {of.batch} with a wait of {of.wait_ms:g} ms, on"
        f" {_count(of.instances)}",
    )


def _faster(curve: Curve, demand: Demand, nearest: Batching) -> Would | None:
    speed = _speed_needed(curve, demand, nearest)
    if speed is None:
        return None
    speed = _moved(
        lambda each: choose(curve.scaled(1 / each), demand).best is not None,
        max(1.01, math.ceil(100 * speed) / 100),
        lambda each: math.ceil(100 * _MOVED * each) / 100,
    )
    if speed is None:
        return None
    return Would(
        kind="faster-artifact",
        figure=speed,
        text=f"an artifact {speed:.2f} times as fast, at batch {nearest.batch} and"
        f" {_count(nearest.instances)}",
    )


def _more_instances(curve: Curve, demand: Demand) -> Would | None:
    if demand.instances is None:
        return None
    best = choose(curve, replace(demand, instances=None)).best
    if best is None or best.batching.instances <= demand.instances:
        return None
    of = best.batching
    return Would(
        kind="more-instances",
        figure=of.instances,
        text=f"{of.instances} instances, with batch {of.batch} and a wait of {of.wait_ms:g} ms",
    )


def _more_servers(curve: Curve, demand: Demand) -> Would | None:
    """Servers that share the traffic, where the ingress has much of the work."""
    if demand.ingress_load * (1 + demand.headroom) < _BUSY_INGRESS:
        return None
    first = max(2, math.ceil(demand.ingress_load * (1 + demand.headroom)))
    for servers in range(first, first + _MORE_SERVERS):
        process = part_of(demand.process, 1 / servers, demand.seed)
        best = choose(curve, replace(demand, process=process)).best
        if best is not None:
            of = best.batching
            return Would(
                kind="more-servers",
                figure=servers,
                text=f"{servers} servers, each with an ingress of its own, 1/{servers} of the traffic,"
                f" {_count(of.instances)}, batch {of.batch} and a wait of {of.wait_ms:g} ms",
            )
    return None


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
        process = demand.process.scaled(smaller / planned)
        return choose(curve, replace(demand, process=process)).best is not None

    kept_rate = _moved(is_kept, rate, lambda each: each / _MOVED)
    if kept_rate is None:
        return None
    where = "this one instance" if nearest.workers == 1 else f"these {nearest.workers} workers"
    if demand.ingress_load * (1 + demand.headroom) >= 1:
        where = "one server, whose ingress carries no more"
    return Would(
        kind="smaller-rate",
        figure=kept_rate,
        text=f"at most {number(kept_rate)} requests a second on {where}",
    )


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
        new = {q: math.ceil(factor * longer[q]) if q in broken else limits[q] for q in limits}
        return replace(demand.promise, limits_ms=new)

    def is_kept(factor: float) -> bool:
        return choose(curve, replace(demand, promise=promise(factor))).best is not None

    factor = _moved(is_kept, 1.0, lambda each: _MOVED * each)
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


def _speed_needed(curve: Curve, demand: Demand, batching: Batching) -> float | None:
    """How many times as fast calls must be; None where no speed helps, as under the overhead."""
    if demand.tightest_ms <= demand.overhead.alone_ms:
        return None
    slow, fast = 1.0, _FASTEST
    if not _kept_at(curve, demand, batching, fast):
        return None
    for _ in range(_SPEED_STEPS):
        middle = (slow * fast) ** 0.5
        slow, fast = (slow, middle) if _kept_at(curve, demand, batching, middle) else (middle, fast)
    return fast


def _kept_at(curve: Curve, demand: Demand, batching: Batching, speed: float) -> bool:
    faster = curve.scaled(1 / speed)
    free = demand.instances is None
    cap = demand.utilisation / (1 + demand.headroom) if free else 1.0
    rate = demand.process.rate_per_s
    used = load(rate, faster, batching.batch, batching.workers, demand.occupied_ms)
    return used <= cap and demand.promise.kept_by(simulated(faster, demand, batching))


def _count(instances: int) -> str:
    return f"{instances} instance{'s' if instances != 1 else ''}"
