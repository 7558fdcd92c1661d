"""What a plan says in words: the answer, why, and a few sentences that a reader must know."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from optcli.errors import counted
from optcli.measure.queueing.choice import MOST_GROWTH, MOST_INSTANCES, ConfigurationChoice
from optcli.measure.queueing.curve import Curve
from optcli.measure.queueing.demand import Demand, Promise, sealed_least_ms, waits_too_little
from optcli.report.wording import number
from optcli.results.plan import Configuration, PlanNote, PriorityLatency
from optcli.serving.planning.files import PlanSettings


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
    reached = {"p50": one.p50_ms, "p95": one.p95_ms, "p99": one.p99_ms}
    figures = " and ".join(
        f"{name} {number(reached[name] or 0)} of {limit:g} ms"
        for name, limit in promised(demand.promise).items()
    )
    return (
        f"Serve {_how(one.batch, one.wait_ms)} on {counted(one.instances, 'instance')}: {figures} at"
        f" {rate}, load {one.utilisation:.2f}; the promise holds up to {number(one.max_rate_per_s)} a"
        " second."
    )


def priority_sentence(demand: Demand, name: str) -> str:
    """That one priority cannot keep the promise with instances of its own."""
    return (
        f"No configuration keeps {of_promise(demand.promise)} for the priority {name}, which is an"
        " application of its own."
    )


def _how(batch: int, wait_ms: float) -> str:
    if batch == 1:
        return "one request at a time"
    when = f"waiting at most {wait_ms:g} ms" if wait_ms else "sent at once"
    return f"batches of at most {batch}, {when}"


def reason(
    curve: Curve, demand: Demand, choice: ConfigurationChoice, recommended: Configuration | None
) -> str:
    """Why this configuration, or why none."""
    best = choice.best
    if best is None or recommended is None:
        return _why_none(curve, demand, choice)
    sentences = []
    if demand.instances is None and best.batching.instances > 1:
        sentences.append(
            "Fewer instances break the promise, or have a load over"
            f" {demand.utilisation:g} with {demand.headroom:.0%} headroom."
        )
    if demand.batch is None:
        least = "at least " if best.growth >= MOST_GROWTH else ""
        how = f"Batches of at most {recommended.batch} keep"
        how = how if recommended.batch > 1 else "One request at a time keeps"
        sentences.append(f"{how} the promise up to {least}{best.growth:.2f} times the planned traffic.")
    return " ".join(sentences) or "The whole configuration was given; it was checked."


def _why_none(curve: Curve, demand: Demand, choice: ConfigurationChoice) -> str:
    smallest = curve.sizes[0] if curve.sizes else 1
    fastest = curve.time_ms(smallest) + demand.overhead.alone_ms
    if fastest > demand.tightest_ms:
        return f"The fastest batch ({smallest}) takes {fastest:.4g} ms with the overhead."
    if demand.ingress_load >= 1 or (
        demand.instances is None and demand.ingress_load * (1 + demand.headroom) >= 1
    ):
        return (
            f"The ingress has a load of {demand.ingress_load:.2f}, and more instances do not help it."
        )
    if not choice.tried:
        return (
            f"More than {MOST_INSTANCES} instances would be needed: plan for parts of the traffic,"
            " each behind a queue of its own."
        )
    near = choice.tried[0]
    of = near.batching
    count = counted(of.instances, "instance")
    where = f"batch {of.batch} with a wait of {of.wait_ms:g} ms on {count}"
    least = sealed_least_ms(curve, demand, of)
    if not math.isfinite(least):
        return f"No wait is long enough for {count} with batches of {of.batch}."
    if waits_too_little(curve, demand, of):
        return (
            f"Batches that are closed after {of.wait_ms:g} ms stay too small: the queue grows without"
            f" bound under {round(least, 3):g} ms."
        )
    if near.run.grows or near.load >= 1:
        return f"The nearest, {where}, has a load of {near.load:.2f}: its queue grows without bound."
    figures = " and ".join(
        f"p{100 * q:g} {number(near.run.percentile_ms(q))} of {limit:g} ms"
        for q, limit in sorted(demand.promise.limits_ms.items())
    )
    broken = " with the headroom" if near.kept and not near.with_headroom else ""
    return f"The nearest, {where}, breaks the promise{broken}: {figures} at a load of {near.load:.2f}."


def notes_of(
    settings: PlanSettings,
    curve: Curve,
    demand: Demand,
    recommended: Configuration | None,
) -> Iterator[PlanNote]:
    """What a reader must know before using the figures, one sentence each."""
    yield from _of_curve(settings, curve, recommended)
    yield from _of_traffic(settings, demand)
    if recommended is None:
        return
    one = recommended
    if settings.instances is not None and one.utilisation_with_headroom > demand.utilisation:
        yield PlanNote(
            kind="no-headroom",
            figures={"load": one.utilisation, "headroom": demand.headroom},
            text=f"with {demand.headroom:.0%} more traffic the load is"
            f" {one.utilisation_with_headroom:.2f}, over the cap of {demand.utilisation:g}",
        )
    if one.instances_per_machine > 1:
        yield PlanNote(
            kind="shared-machine",
            figures={"instances_per_machine": one.instances_per_machine},
            text=f"{one.instances_per_machine} instances share a machine: the curve must have been"
            " measured with as many side by side",
        )


def _of_curve(
    settings: PlanSettings, curve: Curve, recommended: Configuration | None
) -> Iterator[PlanNote]:
    batch = recommended.batch if recommended else settings.batch
    if batch is not None and curve.is_extrapolated(batch):
        yield PlanNote(
            kind="extrapolated",
            figures={"batch": batch, "known": list(curve.sizes)},
            text=f"batch {batch} was not measured, and is extrapolated",
        )
    elif curve.knots and curve.knots[0] > 1:
        yield PlanNote(
            kind="extrapolated",
            figures={"below": curve.knots[0]},
            text=f"batches under {curve.knots[0]} were not measured, and are extrapolated by the line",
        )
    larger = None if batch is None else curve.padded_to(batch)
    if batch is not None and larger is not None:
        yield PlanNote(
            kind="padded",
            figures={"batch": batch, "to": larger},
            text=f"the server pads batches of {batch} to {larger}: they take as long",
        )
    if len(curve.points) == 1 and curve.sizes == (1,):
        yield PlanNote(
            kind="one-point",
            text="only batch size 1 is known: latency.sweep: true measures the others",
        )


def _of_size(settings: PlanSettings) -> str:
    if settings.request_bytes is None:
        return "as for small ones"
    return f"which has {settings.request_bytes / 1e6:.2g} MB"


def _of_traffic(settings: PlanSettings, demand: Demand) -> Iterator[PlanNote]:
    if demand.ingress_ms and "ingress_ms" not in settings.overhead.model_fields_set:
        yield PlanNote(
            kind="assumed-overhead",
            figures={"ingress_ms": settings.overhead_here.ingress_ms},
            text=f"the ingress of {settings.server.title} is taken to work"
            f" {settings.overhead_here.ingress_ms:.3g} ms for each request, {_of_size(settings)}:"
            " `optcli loadtest --calibrate` measures it",
        )
    if demand.ingress_load > demand.utilisation:
        yield PlanNote(
            kind="ingress",
            figures={"most_per_s": 1000 / demand.ingress_ms, "load": demand.ingress_load},
            text=f"the ingress has a load of {demand.ingress_load:.2f}: more instances do not lower it",
        )
    if settings.arrivals == "poisson":
        yield PlanNote(
            kind="bursts",
            text="requests are taken as independent (Poisson): say with --arrivals where they come in"
            " bursts",
        )


def of_priorities(apart: Sequence[PriorityLatency]) -> Iterator[PlanNote]:
    """How many instances priorities take that are served apart."""
    counts = [each.configuration.instances for each in apart if each.configuration is not None]
    if counts:
        together = counted(sum(counts), "instance")
        yield PlanNote(
            kind="priorities",
            figures={"instances": sum(counts)},
            text=f"each priority is an application of its own, {together} together",
        )
