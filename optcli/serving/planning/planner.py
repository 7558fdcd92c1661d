"""A whole plan: the choice, what it costs, the mode, and what is in doubt."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from optcli.errors import InputError, UsageError
from optcli.measure.latency.measured_curve import MeasuredCurve
from optcli.measure.queueing import formulas
from optcli.measure.queueing.arrivals import ANY_RATE, parse
from optcli.measure.queueing.batching import Batching
from optcli.measure.queueing.choice import ConfigurationChoice, choose, most_carried, simulated
from optcli.measure.queueing.curve import Curve
from optcli.measure.queueing.demand import Demand, offer, offered_batches, waits_too_little
from optcli.measure.queueing.formulas import capacity_per_s
from optcli.observer import Observer
from optcli.report.wording import number
from optcli.results.plan import (
    BatchPoint,
    Configuration,
    ModeAdvice,
    Plan,
    PlanCurve,
    PlanNote,
    RatePoint,
    ServerOverhead,
    WaitPoint,
)
from optcli.serving.planning import configuring, notes
from optcli.serving.planning.configuring import (
    Traffic,
    asked_for_per_s,
    carried_per_s,
    configuration,
    demand_of,
    traffic_of,
)
from optcli.serving.planning.files import PlanSettings

# Results that may wait less than this are waited for: somebody, or something, looks at each.
_WAITED_FOR_S = 60.0
STEP = "plan"
_RATE_POINTS = 10
# Where no rate is named: how often a lower one is tried, and the share of the highest one that is sure.
_LOWER_RATES = 3
_SURE = 0.97
# Rates nearer to the planned one would hide it.
_APART = 0.03
_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
Drawn = Literal["p50", "p95", "p99"]
Outcome = Literal["kept", "not-kept", "inconclusive"]


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
    overhead = settings.overhead_here
    overhead_ms = overhead.before_ms + overhead.after_ms + overhead.ingress_ms
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
    overhead = settings.overhead_here
    alone_ms = overhead.before_ms + overhead.after_ms + overhead.ingress_ms
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
    words = f"results may wait {_time(fresh or 0)}"
    if limit_ms is not None and (fresh is None or fresh < _WAITED_FOR_S):
        del deciding["freshness_s"]
        mode, words = "real-time", f"each result is promised within {_time(limit_ms / 1e3)}"
    elif limit_ms is not None:
        del deciding["machines"]
        mode, words = "hybrid", f"a part is promised within {_time(limit_ms / 1e3)}, the rest may wait"
        words += f" {_time(fresh or 0)}"
    known = {name: value for name, value in deciding.items() if value is not None}
    return ModeAdvice.model_validate({"mode": mode, "deciding": known, "reason": words})


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


def make(settings: PlanSettings, known: MeasuredCurve | None, observer: Observer) -> Plan:
    """The plan for checked settings and a curve. Raises `UsageError` and `InputError`.

    Without a curve the answer is the mode, by freshness and latency.
    """
    observer.started(STEP)
    if known is None or not settings.promised or not settings.names_rate:
        parse(settings.arrivals, ANY_RATE)  # what nobody needs may not be wrong either
        return without_queue(settings, known)
    curve = known.curve
    _check_batch(settings, curve)
    carried = carried_per_s(settings, curve)
    traffic = traffic_of(settings, asked_for_per_s(settings, carried))
    demand = demand_of(settings, traffic)
    choice = choose(
        curve, demand, lambda share, text: observer.progress(STEP, share / 2, f"choosing: {text}")
    )
    for _ in range(_LOWER_RATES):
        if carried is None or choice.best is not None:
            break
        # What the load allows takes too long: the answer is the rate that keeps the promise.
        carried = _SURE * max(
            (most_carried(curve, demand, each.batching) for each in choice.tried), default=0.0
        )
        if not carried:
            break
        traffic = traffic_of(settings, asked_for_per_s(settings, carried))
        demand = demand_of(settings, traffic)
        choice = choose(curve, demand)
    return _Planning(settings, known, traffic, demand, choice, observer).plan()


def _check_batch(settings: PlanSettings, curve: Curve) -> None:
    alone = len(curve.points) == 1 and settings.batch is not None
    if alone and curve.is_extrapolated(settings.batch or 1):
        raise UsageError(
            f"the curve knows batch {curve.sizes[0]} alone, found batch {settings.batch}",
            place="--batch",
            hint="give the times of two batch sizes or more",
        )
    if not settings.server.batches and (settings.batch or 1) > 1:
        raise InputError(
            f"found batch {settings.batch}: {settings.server.title} computes each request by itself",
            place="batch",
            hint="leave it out, or plan for --target triton",
        )


class _Planning:
    """One plan while it is put together."""

    def __init__(
        self,
        settings: PlanSettings,
        known: MeasuredCurve,
        traffic: Traffic,
        demand: Demand,
        choice: ConfigurationChoice,
        observer: Observer,
    ) -> None:
        self.settings, self.known, self.traffic = settings, known, traffic
        self.demand, self.choice, self.observer = demand, choice, observer
        self.curve = known.curve

    def plan(self) -> Plan:
        settings, demand, recommended = self.settings, self.demand, self._recommended()
        plan = Plan(
            name=settings.name,
            outcome=self._outcome(recommended is not None),
            sentence=notes.sentence(demand, recommended, unfit=self.known.unfit),
            reason=notes.reason(self.curve, demand, self.choice, recommended),
            target=settings.target,
            slo_ms=notes.promised(demand.promise),
            rate_per_s=self.traffic.mean_per_s,
            planned_rate_per_s=demand.process.rate_per_s,
            headroom=settings.headroom,
            utilisation=settings.utilisation,
            seed=settings.seed,
            curve=plan_curve(self.known, demand.tightest_ms - demand.overhead.alone_ms),
            overhead=ServerOverhead(**settings.overhead_here.model_dump(exclude={"ingresses"})),
            recommended=recommended,
            mode=mode_of(settings, recommended.machines if recommended else None),
            drawn=self._drawn(),
            by_wait=tuple(self._by_wait()),
            notes=tuple(self._notes(recommended)),
            asked=asked(settings),
        )
        more = {} if recommended is None else self._where_kept(recommended)
        self.observer.progress(STEP, 1.0, "done")
        plan = plan.model_copy(update=more)
        return plan.model_copy(update={"notes": (*plan.notes, *notes.of_priorities(plan.priorities))})

    def _outcome(self, is_kept: bool) -> Outcome:
        if self.known.unfit:
            return "inconclusive"
        return "kept" if is_kept else "not-kept"

    def _recommended(self) -> Configuration | None:
        best, prediction = self.choice.best, self.choice.prediction
        if best is None or prediction is None:
            return None
        mean_per_s = self.traffic.mean_per_s
        return configuration(
            self.settings, self.curve, self.demand, best.batching, prediction, mean_per_s
        )

    def _where_kept(self, recommended: Configuration) -> dict[str, object]:
        assert self.choice.best is not None
        batching = self.choice.best.batching
        self._progress(0.75, "the operating curve")
        parts: dict[str, object] = {
            "by_batch": tuple(self._by_batch(batching)),
            "by_rate": tuple(self._by_rate(batching, recommended)),
        }
        if self.settings.priorities:
            self._progress(0.9, "the priorities")
            parts |= self._by_priority()
        return parts

    def _progress(self, share: float, text: str) -> None:
        self.observer.progress(STEP, share, text)

    def _by_batch(self, chosen: Batching) -> Iterator[BatchPoint]:
        # Larger ones than the choice looks at, too: what they cost is the picture's point.
        every = replace(self.demand, batch=None, instances=chosen.instances)
        sizes = {*offered_batches(self.curve, every), chosen.batch}
        for batch in sorted(sizes if self.settings.server.batches else {1}):
            batching = replace(chosen, batch=batch, wait_ms=chosen.wait_ms if batch > 1 else 0.0)
            run = simulated(self.curve, self.demand, batching)
            capacity = formulas.capacity_per_s(
                self.curve,
                batch,
                batching.workers,
                ingress_ms=self.demand.ingress_ms,
            )
            yield BatchPoint(
                batch=batch,
                wait_ms=batching.wait_ms,
                call_ms=self.curve.time_ms(batch),
                latency_ms=None if run.grows else run.percentile_ms(_QUANTILES[self._drawn()]),
                capacity_per_s=capacity,
                kept=self.demand.promise.kept_by(run),
            )

    def _by_wait(self) -> Iterator[WaitPoint]:
        """The waits that were asked for side by side, of the chosen batch size or of the nearest."""
        if len(self.demand.waits_ms) < 2:
            return
        near = self.choice.best or next(iter(self.choice.tried), None)
        of = offer(self.curve, self.demand, self.demand.batch or 1) if near is None else near.batching
        for wait_ms in self.demand.waits_ms:
            batching = replace(of, wait_ms=wait_ms)
            run = simulated(self.curve, self.demand, batching)
            grows = run.grows or waits_too_little(self.curve, self.demand, batching)
            yield WaitPoint(
                wait_ms=wait_ms,
                p50_ms=None if grows else run.p50_ms,
                p95_ms=None if grows else run.p95_ms,
                p99_ms=None if grows else run.p99_ms,
                mean_batch=run.mean_batch,
                busy=run.busy,
                max_rate_per_s=most_carried(self.curve, self.demand, batching),
                kept=not grows and self.demand.promise.kept_by(run),
            )

    def _drawn(self) -> Drawn:
        """The percentile that curves show: p95, unless another one is promised alone."""
        limits = self.demand.promise.limits_ms
        names: list[Drawn] = ["p95", "p99", "p50"]
        return next((name for name in names if _QUANTILES[name] in limits), "p95")

    def _by_rate(self, batching: Batching, recommended: Configuration) -> Iterator[RatePoint]:
        planned = self.demand.process.rate_per_s
        highest = max(recommended.max_rate_per_s, planned)
        # At the highest rate itself a single run may lie on either side of the promise.
        rates = {highest * share / _RATE_POINTS for share in range(2, _RATE_POINTS)} | {0.96 * highest}
        rates = {rate for rate in rates if abs(rate - planned) > _APART * planned}
        rates |= {planned, highest * 1.05, highest * 1.1}
        for rate in sorted(rates):
            run = simulated(self.curve, self.demand, batching, rate / planned)
            yield RatePoint(
                rate_per_s=rate,
                latency_ms=None if run.grows else run.percentile_ms(_QUANTILES[self._drawn()]),
                utilisation=rate / recommended.capacity_per_s,
            )

    def _by_priority(self) -> dict[str, object]:
        """A configuration for each priority; where one breaks the promise, that too."""
        apart = tuple(configuring.by_priority(self.settings, self.curve, self.traffic))
        without = next((each.name for each in apart if each.configuration is None), None)
        if without is None:
            return {"priorities": apart}
        broken = notes.priority_sentence(self.demand, without)
        return {"priorities": apart, "outcome": self._outcome(is_kept=False), "sentence": broken}

    def _notes(self, recommended: Configuration | None) -> Iterator[PlanNote]:
        yield from self.known.warnings
        yield from notes.notes_of(self.settings, self.curve, self.demand, recommended)
