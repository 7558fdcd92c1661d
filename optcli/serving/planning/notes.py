"""What a plan says in words: the answer, why, why not the next best, warnings and advice."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from optcli.queueing import Curve, Promise, Trace
from optcli.queueing.choice import MOST_GROWTH, MOST_INSTANCES, MOST_OF_A_TRACE, Choice, Tried
from optcli.queueing.demand import Demand, bursts_of, by_load, sealed_least_ms, waits_too_little
from optcli.report.wording import number
from optcli.results.plan import (
    Alternative,
    BatchWork,
    Configuration,
    PlanNote,
    PriorityLatency,
)
from optcli.serving.planning.settings import PlanSettings

# From this load on a queue is so near saturation that no window of measurement is long enough.
_WISE = 0.8
# A fit worse than this is no line.
_NON_LINEAR = 0.10
# With fewer in a simulation, its percentiles hang on single bursts.
_FEW_BURSTS = 20.0
# In a shorter trace fewer than ten requests are above its p99.
_SHORT_TRACE = 1000


def promised(promise: Promise) -> dict[str, float]:
    """Milliseconds by the name of the percentile."""
    return {f"p{100 * q:g}": limit for q, limit in sorted(promise.limits_ms.items())}


def of_promise(promise: Promise) -> str:
    """`p95 <= 120 ms and p99 <= 200 ms`."""
    return " and ".join(f"{name} <= {limit:g} ms" for name, limit in promised(promise).items())


def sentence(demand: Demand, recommended: Configuration | None, *, unfit: bool = False) -> str:
    """The answer in one sentence; `unfit` says that the curve was measured on a busy machine."""
    if unfit:
        figures = sentence(demand, recommended)
        return f"Undecided, because the curve was measured on a busy machine. By its figures: {figures}"
    rate = f"{number(demand.process.rate_per_s)} requests a second"
    if recommended is None:
        return f"No configuration keeps {of_promise(demand.promise)} at {rate}."
    one = recommended
    without = (
        "" if demand.instances is not None else f" ({one.instances_without_headroom} without headroom)"
    )
    figures = " and ".join(
        f"{name} {_reached(one, name):.3g} of {limit:g} ms"
        for name, limit in promised(demand.promise).items()
    )
    return (
        f"Serve {_how(one.batch, one.wait_ms)} on {_instances(one.instances)}{without}: {figures} at"
        f" {rate}, load {one.utilisation:.2f}; the promise holds up to"
        f" {number(one.max_rate_per_s)} a second."
    )


def priority_sentence(demand: Demand, name: str) -> str:
    """That one priority cannot keep the promise with instances of its own."""
    fixed = "" if demand.instances is None else f" of {_instances(demand.instances)}"
    return (
        f"No configuration keeps {of_promise(demand.promise)} for the priority {name}: batches are"
        f" sealed, and each priority has its own share{fixed}."
    )


def _instances(count: int) -> str:
    return f"{count} instance{'s' if count != 1 else ''}"


def _how(batch: int, wait_ms: float) -> str:
    if batch == 1:
        return "one request at a time"
    when = f"waiting at most {wait_ms:g} ms" if wait_ms else "sent at once"
    return f"batches of at most {batch}, {when}"


def _reached(one: Configuration, name: str) -> float:
    return float(getattr(one, f"{name}_ms"))


def reason(curve: Curve, demand: Demand, choice: Choice, recommended: Configuration | None) -> str:
    """Why this configuration, or why none."""
    best = choice.best
    if best is None or recommended is None:
        return _why_none(curve, demand, choice)
    parts = []
    if demand.instances is None:
        parts.append(
            f"{_instances(recommended.instances)} {'are' if recommended.instances != 1 else 'is'} the"
            f" fewest that carry {number(demand.process.rate_per_s * (1 + demand.headroom))} a second"
            f" ({demand.headroom:.0%}"
            f" headroom) at a load of {demand.utilisation:g} at most and keep the promise"
        )
    reserved = demand.ingress_load * (1 + demand.headroom)
    if reserved > demand.utilisation and demand.instances is None:
        parts.append(
            f"the load of the ingress is {reserved:.2f} with the headroom, which more instances do not"
            " lower"
        )
    if demand.batch is None:
        grown = (
            f"carries {MOST_GROWTH:g} times the traffic"
            if best.growth >= MOST_GROWTH
            else f"carries {best.growth:.2f} times the traffic, within 5 % of the best"
        )
        parts.append(f"{recommended.batch} is the smallest batch size that {grown}")
    if demand.wait_ms is None and recommended.batch > 1:
        how = (
            f"a sealed batcher needs {recommended.least_wait_ms or 0.0:.3g} ms at least, and of the"
            " longer waits the simulation has the lowest latency here"
            if demand.semantics == "sealed"
            else "a shorter wait keeps workers busier, a longer one adds more than 5 % to the latency"
            if recommended.wait_ms
            else "waiting would not keep workers less busy"
        )
        parts.append(how)
    return "; ".join(parts) + "." if parts else "The whole configuration was given; it was checked."


def _why_none(curve: Curve, demand: Demand, choice: Choice) -> str:
    smallest = curve.sizes[0] if curve.sizes else 1
    fastest = curve.time_ms(smallest) + demand.overhead.alone_ms
    if fastest > demand.tightest_ms:
        return (
            f"The fastest batch ({smallest}) takes {fastest:.4g} ms with the overhead, more than the"
            f" {demand.tightest_ms:g} ms that are promised."
        )
    headroom = 0.0 if demand.instances is not None else demand.headroom
    if (reserved := demand.ingress_load * (1 + headroom)) >= 1:
        above = f", {reserved:.2f} with {headroom:.0%} headroom" if headroom else ""
        return (
            f"The ingress takes one request after the other: its load is {demand.ingress_load:.2f}"
            f"{above}, and more instances do not help."
        )
    if not choice.tried:
        return (
            f"More than {MOST_INSTANCES} instances would be needed: plan for parts of the traffic,"
            " each behind a queue of its own."
        )
    near = choice.tried[0]
    least = sealed_least_ms(curve, demand, near.batching)
    if not math.isfinite(least):
        return (
            f"No wait is long enough for {_instances(near.batching.instances)}: images come faster than"
            " the largest batches carry them, and the queue grows without bound."
        )
    if waits_too_little(curve, demand, near.batching):
        return (
            f"A sealed batcher that waits {near.batching.wait_ms:g} ms stays below the rate: its"
            f" queue grows without bound under {least:.3g} ms."
        )
    where = _short(near)
    if near.run.grows or near.load >= 1:
        return f"The nearest, {where}, has a load of {near.load:.2f}: its queue grows without bound."
    figures = f"reaches {_figures(near, demand.promise)} at a load of {near.load:.2f}"
    if near.kept and not near.with_headroom:
        return f"The nearest, {where}, {figures}, but breaks the promise with the headroom."
    if demand.promise.kept_by(near.run):
        return f"The nearest, {where}, {figures} in one run, but not with every seed of the simulation."
    return f"The nearest, {where}, {figures}."


def _short(one: Tried) -> str:
    of = one.batching
    return f"batch {of.batch} with a wait of {of.wait_ms:g} ms on {_instances(of.instances)}"


def _figures(one: Tried, promise: Promise) -> str:
    return " and ".join(
        f"p{100 * q:g} {one.run.percentile_ms(q):.3g} of {limit:g} ms"
        for q, limit in sorted(promise.limits_ms.items())
    )


def alternative(demand: Demand, one: Tried, lost: str) -> Alternative:
    """A configuration that was not chosen."""
    return Alternative(
        batch=one.batching.batch,
        wait_ms=one.batching.wait_ms,
        instances=one.batching.instances,
        p95_ms=one.run.p95_ms,
        utilisation=max(one.load, demand.ingress_load),
        growth=one.growth or None,
        lost_because=lost,
    )


def lost_because(
    demand: Demand, best: Tried | None, other: Tried, recommended: Configuration | None
) -> str:
    """Why a configuration is not the recommended one."""
    if other.run.grows or other.load >= 1:
        return f"its queue grows without bound (load {other.load:.2f})"
    if not other.kept:
        return f"it breaks the promise: {_figures(other, demand.promise)}"
    if best is None or recommended is None:
        return f"it does not keep the promise with other seeds: {_figures(other, demand.promise)}"
    reserve = other.load * (1 + demand.headroom)
    if other.batching.instances < recommended.instances:
        if reserve > demand.utilisation:
            return (
                f"its load with {demand.headroom:.0%} headroom is {reserve:.2f}, over the cap of"
                f" {demand.utilisation:g}"
            )
        return f"it does not keep the promise with {demand.headroom:.0%} headroom"
    if other.batching.instances > recommended.instances:
        return (
            f"it needs {other.batching.instances} instances where {recommended.instances}"
            f" {'do' if recommended.instances > 1 else 'does'}"
        )
    if not other.with_headroom:
        return f"it does not keep the promise with {demand.headroom:.0%} headroom"
    if other.growth < best.growth:
        return (
            f"it carries {other.growth:.2f} times the traffic, batch {best.batching.batch} carries"
            f" {best.growth:.2f} times{' and more' if best.growth >= MOST_GROWTH else ''}"
        )
    return f"the larger batch carries hardly more ({other.growth:.2f} times the traffic)"


def doubts(
    settings: PlanSettings,
    curve: Curve,
    demand: Demand,
    choice: Choice,
    recommended: Configuration | None,
) -> Iterator[PlanNote]:
    """What a reader must know before using the figures."""
    batch = recommended.batch if recommended else settings.batch
    if batch is not None and curve.is_extrapolated(batch):
        yield PlanNote(
            kind="extrapolated",
            figures={"batch": batch, "known": list(curve.sizes)},
            text=f"extrapolated: batch {batch} was not measured, the curve knows"
            f" {', '.join(map(str, curve.sizes))}",
        )
    elif curve.knots and curve.knots[0] > 1:
        yield PlanNote(
            kind="extrapolated",
            figures={"below": curve.knots[0]},
            text=f"extrapolated: batches under {curve.knots[0]} are taken from the line, and the"
            " simulation has many of them",
        )
    larger = None if batch is None else curve.padded_to(batch)
    if batch is not None and larger is not None:
        yield PlanNote(
            kind="padded",
            figures={"batch": batch, "to": larger},
            text=f"padded: the server pads batches of {batch} to {larger}: they take as long",
        )
    is_asked = "on_full" in settings.model_fields_set
    if settings.semantics == "sealed" and is_asked and settings.on_full != "reject-newest":
        yield PlanNote(
            kind="on-full",
            figures={"asked": settings.on_full},
            text=f"`on_full: {settings.on_full}` does not hold: with sealed batches, as in Ray Serve, a"
            " full queue refuses the newest request",
        )
    busy = demand.ingress_load
    if busy > demand.utilisation:
        most = 1000 / demand.overhead.ingress_ms
        yield PlanNote(
            kind="ingress",
            figures={"most_per_s": most, "load": busy},
            text=f"the ingress takes one request after the other, at most {most:.4g} a second, and"
            f" would be busy for {busy:.0%} of the time; more instances do not help it, a second server"
            " does",
        )
    if curve.flattened:
        sizes = ", ".join(map(str, curve.flattened))
        yield PlanNote(
            kind="noisy",
            figures={"batches": list(curve.flattened)},
            text=f"noisy: at batch {sizes} the measured times fall with the batch size, by less than"
            " 5 %; the plan takes them as equal",
        )
    if curve.points and curve.largest_residual > _NON_LINEAR:
        yield PlanNote(
            kind="non-linear",
            figures={"largest_residual": curve.largest_residual},
            text=f"non-linear: the line is off by {curve.largest_residual:.0%} at one batch size;"
            " between the known ones the plan interpolates",
        )
    if len(curve.points) == 1 and curve.sizes == (1,):
        yield PlanNote(
            kind="one-point",
            text="only batch size 1 is known: the plan has no batches; latency.sweep: true measures"
            " the others",
        )
    bursts = bursts_of(demand)
    if bursts is not None and bursts < _FEW_BURSTS:
        yield PlanNote(
            kind="few-bursts",
            figures={"bursts": bursts},
            text=f"one simulation has {bursts:.2g} bursts: the intervals are rough; a plan for the rate"
            " of a burst (--rate, without --arrivals) is on the safe side",
        )
    if isinstance(demand.own, Trace):
        yield from _of_trace(demand.own)
    if recommended is not None and choice.best is not None:
        yield from _tight(settings, demand, choice.best, recommended)


def _of_trace(trace: Trace) -> Iterator[PlanNote]:
    requests = int(trace.times_ms.size)
    if requests < _SHORT_TRACE:
        yield PlanNote(
            kind="short-trace",
            figures={"requests": requests},
            text=f"the trace has {requests} requests, which the simulation replays over and over: the"
            " percentiles depend on a few of them",
        )
    if requests > MOST_OF_A_TRACE:
        yield PlanNote(
            kind="part-of-trace",
            figures={"requests": requests, "simulated": MOST_OF_A_TRACE},
            text=f"the trace has {requests} requests, of which {MOST_OF_A_TRACE} in a row are"
            " simulated: give the part with the worst hours",
        )


def _tight(
    settings: PlanSettings, demand: Demand, best: Tried, recommended: Configuration
) -> Iterator[PlanNote]:
    if settings.instances is not None and (
        not best.with_headroom or recommended.utilisation_with_headroom > demand.utilisation
    ):
        yield PlanNote(
            kind="no-headroom",
            figures={"load": recommended.utilisation, "headroom": demand.headroom},
            text=f"no headroom: with {demand.headroom:.0%} more traffic the load is"
            f" {recommended.utilisation_with_headroom:.2f}, over the cap of {demand.utilisation:g}",
        )
    dropped = recommended.drop_share or 0.0
    if dropped > demand.promise.error_budget:
        yield PlanNote(
            kind="drops",
            figures={"drop_share": dropped, "error_budget": demand.promise.error_budget},
            text=f"drops: at the planned rate the queue cap and the timeout drop {dropped:.2%} of the"
            f" requests, more than the error budget of {demand.promise.error_budget:.2%}",
        )
    if recommended.utilisation > _WISE:
        yield PlanNote(
            kind="near-saturation",
            figures={"load": recommended.utilisation},
            text=f"near saturation: at a load of {recommended.utilisation:.2f} a little more traffic"
            " makes latency much longer",
        )
    memory = settings.instance_memory_bytes
    if recommended.instances_per_machine > 1:
        given = "memory allows it, and " if memory and settings.instances_per_machine is None else ""
        yield PlanNote(
            kind="shared-machine",
            figures={"instances_per_machine": recommended.instances_per_machine},
            text=f"{recommended.instances_per_machine} instances share a machine: {given}the curve"
            " must have been measured with as many side by side",
        )


def advice(
    settings: PlanSettings, curve: Curve, demand: Demand, recommended: Configuration
) -> Iterator[PlanNote]:
    """What to do beside setting the figures."""
    one = recommended
    whole = " The usual sum of wait, call and overhead leaves the queue out."
    yield PlanNote(
        kind="sum",
        figures={"sum_ms": one.sum_ms, "p95_ms": one.p95_ms},
        text=f"by the usual sum a request takes {one.sum_ms:.4g} ms; the simulation has p95"
        f" {one.p95_ms:.4g} ms.{whole}",
    )
    if one.on_full == "drop-oldest":
        text = (
            f"cap the queue at {one.queue_cap} requests and drop the oldest when it is full; a server"
            f" that can only reject new requests takes {one.reject_newest_cap}"
        )
    elif one.on_full == "deadline":
        text = f"drop a request that has waited {one.timeout_ms:.4g} ms: it comes too late"
    else:
        text = f"reject new requests where {one.queue_cap} wait"
    yield PlanNote(
        kind="queue", figures={"queue_cap": one.queue_cap}, text=f"{text}; count drops by cause"
    )
    if one.batch > 1 and demand.semantics == "oldest-age" and one.wait_ms > 0:
        alone = (
            demand.process.rate_per_s * curve.time_ms(1) / 1e3 if not curve.is_extrapolated(1) else None
        )
        if alone is not None and alone > 0.5:
            quiet = 500 / curve.time_ms(1)
            yield PlanNote(
                kind="adaptive-wait",
                figures={"below_per_s": quiet},
                text=f"under {quiet:.3g} requests a second a wait only adds latency: let the server"
                " wait from that rate on",
            )
    if settings.arrivals.startswith("poisson") and settings.cameras is None:
        yield PlanNote(
            kind="bursts",
            figures={"instances_by_load": by_load(curve, demand, one.batch)},
            text="the traffic is taken as independent requests (Poisson); where it comes in bursts, say"
            " so with --arrivals, and load test at 1.2 times the expected peak",
        )


def of_priorities(apart: Sequence[PriorityLatency], recommended: Configuration) -> Iterator[PlanNote]:
    """What it takes to serve priorities apart, beside one queue for all."""
    counts = [each.configuration.instances for each in apart if each.configuration is not None]
    if not counts:
        return
    text = (
        "sealed batches have no queue in which urgent requests could go first: each priority gets"
        f" instances of its own, {sum(counts)} together"
    )
    if sum(counts) != recommended.instances:
        text += f"; one queue for all would take {recommended.instances}"
    yield PlanNote(kind="priorities", figures={"instances": sum(counts)}, text=text)


def batch_sentence(work: BatchWork) -> str:
    """The answer for work that may wait."""
    return (
        f"Run batches of {work.batch} on {_instances(work.instances)}:"
        f" {number(work.items)} items gather in {work.freshness_s / 3600:.3g} h and take"
        f" {work.hours:.3g} h."
    )


def batch_reason(work: BatchWork) -> str:
    """Why so."""
    return (
        f"{work.batch} is the smallest batch size within 5 % of the largest throughput; half of the"
        " time is left for a run that fails and is repeated."
    )
