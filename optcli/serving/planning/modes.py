"""Questions without a queue: the mode, and the largest batch within a promise."""

from __future__ import annotations

import math
from collections.abc import Iterator

from optcli.errors import UsageError
from optcli.measure.latency.measured_curve import MeasuredCurve
from optcli.measure.queueing import Curve
from optcli.measure.queueing.formulas import capacity_per_s
from optcli.report.wording import number
from optcli.results.plan import BatchPoint, ModeAdvice, Plan, PlanCurve
from optcli.serving.planning.settings import PlanSettings

# Results that may wait less than this are waited for: somebody, or something, looks at each.
_WAITED_FOR_S = 60.0


def without_queue(settings: PlanSettings, known: MeasuredCurve | None) -> Plan:
    """A plan without a promise on latency, or without a rate. Raises `UsageError` for neither."""
    if not settings.promised and settings.freshness_s is None:
        raise UsageError(
            "nothing is promised",
            place="--slo",
            hint="say --slo p95=120ms, or --freshness 8h where results may wait",
        )
    if known is not None and settings.promised:
        return _within_promise(settings, known)
    mode = mode_of(settings, None)
    sentence = f"{mode.mode[0].upper()}{mode.mode[1:]}: {mode.reason}."
    plan = _plan(settings, known, sentence, "Freshness and latency decide.", mode)
    return plan.model_copy(update={"by_batch": tuple(_points(settings, known, math.inf))})


def _within_promise(settings: PlanSettings, known: MeasuredCurve) -> Plan:
    """The largest batch whose call is within the promise, where no rate is named."""
    assert settings.slo is not None
    limit_ms = min(settings.slo.limits_ms.values())
    points = tuple(_points(settings, known, limit_ms))
    best = max((each for each in points if each.kept), key=lambda each: each.batch, default=None)
    if best is None:
        sentence = f"No batch size has a call within {limit_ms:g} ms."
    else:
        sentence = (
            f"The largest known batch whose call is within {limit_ms:g} ms is {best.batch}: one"
            f" instance carries {number(best.capacity_per_s)} a second at full load."
        )
    reason = "No rate was named, so nothing queues: add --rate for a configuration."
    plan = _plan(settings, known, sentence, reason, mode_of(settings, None), best is not None)
    return plan.model_copy(update={"by_batch": points})


def _points(
    settings: PlanSettings, known: MeasuredCurve | None, limit_ms: float
) -> Iterator[BatchPoint]:
    """Calls of one instance by batch size, with the overhead."""
    if known is None:
        return
    beside = settings.overhead_here
    overhead_ms = beside.before_ms + beside.after_ms + beside.ingress_ms
    for batch in _sizes(known.curve, settings.largest_batch):
        latency_ms = known.curve.time_ms(batch) + overhead_ms
        capacity = capacity_per_s(known.curve, batch, settings.concurrency)
        yield BatchPoint(
            batch=batch,
            wait_ms=0.0,
            call_ms=known.curve.time_ms(batch),
            latency_ms=latency_ms,
            capacity_per_s=capacity,
            kept=latency_ms <= limit_ms,
        )


def _plan(
    settings: PlanSettings,
    known: MeasuredCurve | None,
    sentence: str,
    reason: str,
    mode: ModeAdvice,
    is_kept: bool = True,
) -> Plan:
    slo = settings.slo
    limits = {} if slo is None else {f"p{100 * q:g}": limit for q, limit in slo.limits_ms.items()}
    beside = settings.overhead_here
    alone_ms = beside.before_ms + beside.after_ms + beside.ingress_ms
    room_ms = min(limits.values()) - alone_ms if limits else None
    unfit = known is not None and known.unfit
    return Plan(
        name=settings.name,
        outcome="inconclusive" if unfit else "kept" if is_kept else "not-kept",
        sentence=sentence,
        reason=reason,
        target=settings.target,
        slo_ms=limits,
        rate_per_s=None,
        planned_rate_per_s=None,
        headroom=settings.headroom,
        utilisation=settings.utilisation,
        seed=settings.seed,
        curve=PlanCurve(source="none was named") if known is None else plan_curve(known, room_ms),
        recommended=None,
        mode=mode,
        notes=() if known is None else known.warnings,
        asked=asked(settings),
    )


def plan_curve(known: MeasuredCurve, room_ms: float | None) -> PlanCurve:
    """The curve as a plan has it, with the largest batches whose call takes no longer than the room."""
    curve = known.curve
    sizes = curve.sizes
    return PlanCurve(
        source=known.source,
        points_ms=dict(curve.points),
        fixed_ms=curve.fixed_ms,
        per_image_ms=curve.per_image_ms,
        largest_residual=curve.largest_residual if curve.points else None,
        samples_ms={size: tuple(each.tolist()) for size, each in curve.samples_ms.items()},
        largest_within_slo=None
        if room_ms is None or not sizes
        else curve.largest_within(room_ms, sizes),
        compiled=() if known.forms is None else tuple(sorted(known.forms.compiled)),
        padded_from={size: first for first, size in curve.padded},
        between_ms=dict(curve.between),
    )


def asked(settings: PlanSettings) -> dict[str, object]:
    """The whole plan file, with presets and options."""
    whole = settings.model_dump(mode="json", exclude_none=True)
    # What is not said of the overhead is the server's own, perhaps of another one.
    return {**whole, "overhead": settings.overhead.model_dump(exclude_unset=True)}


def mode_of(settings: PlanSettings, real_time_machines: int | None) -> ModeAdvice:
    """The mode. `real_time_machines` is what serving takes."""
    fresh = settings.freshness_s
    limits = settings.slo.limits_ms if settings.slo else {}
    limit_ms = min(limits.values(), default=None)
    deciding = {"slo_ms": limit_ms, "freshness_s": fresh, "machines": real_time_machines}
    mode = "batch"
    said = f"results may wait {_time(fresh or 0)}"
    if limit_ms is not None and (fresh is None or fresh < _WAITED_FOR_S):
        del deciding["freshness_s"]
        mode, said = "real-time", f"each result is promised within {_time(limit_ms / 1e3)}"
    elif limit_ms is not None:
        del deciding["machines"]
        mode, said = "hybrid", f"a part is promised within {_time(limit_ms / 1e3)}, the rest may wait"
        said += f" {_time(fresh or 0)}"
    known = {name: value for name, value in deciding.items() if value is not None}
    return ModeAdvice.model_validate({"mode": mode, "deciding": known, "reason": said})


def _sizes(curve: Curve, largest: int) -> list[int]:
    """The known batch sizes; of a line powers of two."""
    sizes = [size for size in curve.sizes if size <= largest]
    return sizes or [1 << power for power in range(largest.bit_length()) if 1 << power <= largest]


def _time(seconds: float) -> str:
    """`120 ms`, `2 s`, `10 min`, `8 h`, `7 days`."""
    for unit, length in (("days", 86_400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= (2 * length if unit == "days" else length):
            return f"{seconds / length:.3g} {unit}"
    return f"{1e3 * seconds:.3g} ms"
