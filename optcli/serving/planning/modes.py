"""Batch, real-time or hybrid: from freshness, latency and cost, with the two numbers that decide."""

from __future__ import annotations

import math

from optcli.queueing import Curve
from optcli.queueing.formulas import capacity_per_s
from optcli.results.plan import BatchWork, ModeAdvice
from optcli.serving.planning.settings import PlanSettings

# Results that may wait less than this are waited for: somebody, or something, looks at each.
_WAITED_FOR_S = 60.0
# Full batches one after the other leave this share for reading and writing.
BUSY_IN_BATCHES = 0.9
_DAY_H = 24.0


def mode_of(
    settings: PlanSettings, work: BatchWork | None, real_time_machines: int | None
) -> ModeAdvice:
    """The mode. `work` is what results that may wait take, `real_time_machines` what serving takes."""
    fresh, promised = settings.freshness_s, settings.promised
    limit_ms = min(settings.slo.limits_ms.values()) if promised and settings.slo else None
    if fresh is None or (fresh < _WAITED_FOR_S and promised):
        assert limit_ms is not None
        return ModeAdvice(
            mode="real-time",
            deciding=_known(slo_ms=limit_ms, machines=real_time_machines),
            reason=f"every result is promised within {_time(limit_ms / 1e3)} and none may wait:"
            " real-time" + _costs(real_time_machines),
        )
    if limit_ms is not None:
        return ModeAdvice(
            mode="hybrid",
            deciding={"slo_ms": limit_ms, "freshness_s": fresh},
            reason=f"a part is promised within {_time(limit_ms / 1e3)}, the rest may wait"
            f" {_time(fresh)}: hybrid, a fast model in real time and the rest in batches",
        )
    saved = ""
    deciding = {"freshness_s": fresh}
    if work is not None:
        deciding["machine_hours_per_day"] = work.machine_hours_per_day
        if work.real_time_machine_hours_per_day is not None:
            saved = (
                f", and full batches take {work.machine_hours_per_day:.3g} machine-hours a day where"
                f" serving takes {work.real_time_machine_hours_per_day:.3g}"
            )
    return ModeAdvice(
        mode="batch", deciding=deciding, reason=f"results may wait {_time(fresh)}{saved}: batch"
    )


def batch_work(settings: PlanSettings, curve: Curve, rate_per_s: float) -> BatchWork:
    """What gathers within the freshness, and what full batches take for it.

    The batch size is the smallest within 5 % of the largest capacity; half of the freshness is left
    for a run that fails and is repeated.
    """
    assert settings.freshness_s is not None
    batch = settings.batch or _most_efficient(curve, settings.largest_batch)
    occupied = _occupied_ms(settings)
    per_instance = BUSY_IN_BATCHES * capacity_per_s(curve, batch, settings.concurrency, occupied)
    items = rate_per_s * settings.freshness_s
    window_s = settings.freshness_s / 2
    instances = settings.instances or max(1, math.ceil(items / (per_instance * window_s)))
    hours = items / (per_instance * instances) / 3600
    machines = math.ceil(instances / settings.on_one_machine)
    per_day = 86_400 / settings.freshness_s
    return BatchWork(
        freshness_s=settings.freshness_s,
        items=items,
        batch=batch,
        instances=instances,
        hours=hours,
        machine_hours_per_day=hours * machines * per_day,
        real_time_machine_hours_per_day=_DAY_H * _real_time_machines(settings, curve, rate_per_s),
    )


def _real_time_machines(settings: PlanSettings, curve: Curve, rate_per_s: float) -> int:
    """Machines that would answer every request at once, one by one, with the usual reserve."""
    batch = curve.sizes[0] if curve.sizes else 1
    planned = rate_per_s * settings.peak_factor * (1 + settings.headroom)
    capacity = capacity_per_s(curve, batch, settings.concurrency, _occupied_ms(settings))
    instances = max(1, math.ceil(planned / (capacity * settings.utilisation)))
    return math.ceil(instances / settings.on_one_machine)


def _occupied_ms(settings: PlanSettings) -> float:
    beside = settings.overhead
    return beside.before_ms + beside.after_ms if beside.occupies_worker else 0.0


def _most_efficient(curve: Curve, largest: int) -> int:
    sizes = [size for size in curve.sizes if size <= largest]
    sizes = sizes or [1 << power for power in range(largest.bit_length()) if 1 << power <= largest]
    most = max(curve.per_s(size) for size in sizes)
    return next(size for size in sizes if curve.per_s(size) >= 0.95 * most)


def _known(**figures: float | None) -> dict[str, float]:
    return {name: value for name, value in figures.items() if value is not None}


def _costs(machines: int | None) -> str:
    if machines is None:
        return ""
    return f", at {machines} machine{'s' if machines > 1 else ''} all day"


def _time(seconds: float) -> str:
    """`120 ms`, `2 s`, `10 min`, `8 h`, `7 days`."""
    for unit, length in (("days", 86_400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0)):
        if seconds >= (2 * length if unit == "days" else length):
            return f"{seconds / length:.3g} {unit}"
    return f"{1e3 * seconds:.3g} ms"
