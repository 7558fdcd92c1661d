"""What breaks first when traffic grows, and what would let a promise be kept that is not."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from optcli.errors import InputError
from optcli.queueing import Batching, Curve, highest_rate
from optcli.queueing.choice import (
    MOST_INSTANCES,
    Choice,
    Demand,
    choose,
    keeps,
    offer,
    predict,
    requests_of,
    sealed_least_ms,
    simulated,
)
from optcli.queueing.formulas import fewest_instances, load
from optcli.report.wording import number
from optcli.results.plan import Growth, Would

FACTORS = (1.2, 1.5, 2.0)
_SPEED_STEPS = 7
_MOST_MORE = 64


def breaks_first(curve: Curve, demand: Demand, batching: Batching) -> tuple[Growth, ...]:
    """The configuration at 1.2, 1.5 and 2 times the traffic."""
    return tuple(_grown(curve, demand, batching, factor) for factor in FACTORS)


def _grown(curve: Curve, demand: Demand, batching: Batching, factor: float) -> Growth:
    rate = demand.process.rate_per_s * factor
    used = load(rate, curve, batching.batch, batching.workers, demand.occupied_ms)
    prediction = predict(curve, demand, batching, factor=factor, runs=2)
    kept = keeps(prediction, demand.promise, surely=False)
    grows = prediction.grows or used >= 1
    breaks = "capacity" if grows else "latency" if not kept else None
    if kept and breaks is None and used > demand.utilisation:
        breaks = "reserve"
    p95 = None if grows else prediction.p95_ms.value
    needed = None if breaks is None else _instances_for(curve, demand, batching, factor)
    return Growth(
        factor=factor,
        rate_per_s=rate,
        utilisation=used,
        p95_ms=p95,
        kept=kept and not grows,
        breaks=breaks,
        instances=needed,
        then=_then(breaks, batching.instances, needed, used, demand.utilisation),
    )


def _instances_for(curve: Curve, demand: Demand, batching: Batching, factor: float) -> int | None:
    """The fewest instances of this batch and wait that keep the promise below the utilisation cap."""
    first = fewest_instances(
        demand.process.rate_per_s * factor,
        curve,
        batching.batch,
        utilisation=demand.utilisation,
        concurrency=demand.concurrency,
        occupied_ms=demand.occupied_ms,
    )
    first = max(first, batching.instances)
    for instances in range(first, first + _MOST_MORE):
        run = simulated(curve, demand, replace(batching, instances=instances), factor)
        if demand.promise.kept_by(run):
            return instances
    return None


def _then(breaks: str | None, have: int, needed: int | None, used: float, cap: float) -> str:
    if breaks is None:
        return "nothing breaks"
    what = {
        "capacity": f"the instances cannot carry it (load {used:.2f}): the queue grows without bound",
        "latency": f"the promise breaks at a load of {used:.2f}",
        "reserve": f"the promise is kept, at a load of {used:.2f} above the cap of {cap:g}",
    }[breaks]
    if needed is None:
        return f"{what}; more instances alone do not help"
    more = needed - have
    return f"{what}; serve with {needed} instances, {more} more" if more else what


def would_keep(curve: Curve, demand: Demand, choice: Choice) -> tuple[Would, ...]:
    """What would let the promise be kept where no configuration does."""
    nearest = choice.tried[0].batching if choice.tried else _smallest(curve, demand)
    if nearest.instances > MOST_INSTANCES:
        return ()
    return tuple(_would(curve, demand, nearest, choice))


def _smallest(curve: Curve, demand: Demand) -> Batching:
    """The configuration with the fastest call."""
    batch = demand.batch or (curve.sizes[0] if curve.sizes else 1)
    return offer(curve, demand, batch)


def _would(curve: Curve, demand: Demand, nearest: Batching, choice: Choice) -> Iterator[Would]:
    least = sealed_least_ms(curve, demand, nearest)
    if demand.semantics == "sealed" and nearest.wait_ms < least < math.inf:
        yield Would(
            kind="longer-wait",
            figure=least,
            text=f"a wait over {least:.3g} ms: below it sealed batches of {nearest.instances}"
            f" instance{'s' if nearest.instances > 1 else ''} stay too small to carry the rate",
        )
    if (speed := _speed_needed(curve, demand, nearest)) is not None:
        speed = max(1.01, math.ceil(100 * speed) / 100)
        yield Would(
            kind="faster-artifact",
            figure=speed,
            text=f"an artifact {speed:.2f} times as fast, at batch {nearest.batch} and"
            f" {nearest.instances} instance{'s' if nearest.instances > 1 else ''}",
        )
    if demand.instances is not None:
        more = choose(curve, replace(demand, instances=None))
        if more.best is not None:
            best = more.best.batching
            yield Would(
                kind="more-instances",
                figure=best.instances,
                text=f"{best.instances} instances, with batch {best.batch} and a wait of"
                f" {best.wait_ms:g} ms",
            )
    rate = highest_rate(
        demand.process,
        curve,
        nearest,
        demand.promise,
        demand.overhead,
        requests=requests_of(demand),
        seed=demand.seed,
    )
    if 0 < rate < demand.process.rate_per_s:
        yield Would(
            kind="smaller-rate",
            figure=rate,
            text=f"at most {number(rate)} requests a second on these {nearest.workers} workers"
            if nearest.workers > 1
            else f"at most {number(rate)} requests a second on this one instance",
        )
    prediction = predict(curve, demand, nearest)
    if not prediction.grows:
        reached = {0.5: prediction.p50_ms, 0.95: prediction.p95_ms, 0.99: prediction.p99_ms}
        q, limit = min(
            demand.promise.limits_ms.items(), key=lambda each: each[1] / reached[each[0]].value
        )
        needed = math.ceil(reached[q].high or reached[q].value)
        if needed > limit:
            yield Would(
                kind="longer-promise",
                figure=needed,
                text=f"a promise of p{100 * q:g} {needed} ms instead of {limit:g} ms",
            )


def _speed_needed(curve: Curve, demand: Demand, batching: Batching) -> float | None:
    """How many times as fast calls must be; None where no speed helps, as under the overhead."""
    if demand.tightest_ms <= demand.overhead.total_ms:
        return None
    slow, fast = 1.0, 64.0
    if not _kept_at(curve, demand, batching, fast):
        return None
    for _ in range(_SPEED_STEPS + 3):
        middle = (slow * fast) ** 0.5
        slow, fast = (slow, middle) if _kept_at(curve, demand, batching, middle) else (middle, fast)
    return fast


def _kept_at(curve: Curve, demand: Demand, batching: Batching, speed: float) -> bool:
    faster = scaled(curve, 1 / speed)
    cap = demand.utilisation if demand.instances is None else 1.0
    rate = demand.process.rate_per_s
    used = load(rate, faster, batching.batch, batching.workers, demand.occupied_ms)
    return used <= cap and demand.promise.kept_by(simulated(faster, demand, batching))


def scaled(curve: Curve, factor: float) -> Curve:
    """The curve with every time multiplied. Raises `InputError` for a factor that is not above 0."""
    if factor <= 0:
        raise InputError(f"found the factor {factor:g}", place="curve", hint="wanted more than 0")
    if curve.samples_ms:
        return Curve.from_samples({size: ms * factor for size, ms in curve.samples_ms.items()})
    if curve.points:
        return Curve.from_points({size: ms * factor for size, ms in curve.points})
    return Curve.from_line((curve.fixed_ms or 0.0) * factor, (curve.per_image_ms or 0.0) * factor)
