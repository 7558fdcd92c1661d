"""A whole plan: the choice, what it costs, what breaks first, the mode, and what is in doubt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from optcli.errors import UsageError
from optcli.latency.measured_curve import MeasuredCurve
from optcli.observer import Observer
from optcli.queueing import Batching, Curve, Overhead, Poisson, Promise, formulas
from optcli.queueing.choice import Choice, Tried, choose, most_carried, simulated
from optcli.queueing.demand import Demand, by_load, offered_batches
from optcli.results.plan import (
    Alternative,
    BatchPoint,
    Configuration,
    LevelNeed,
    ModeAdvice,
    Plan,
    PlanCurve,
    PlanNote,
    PriorityLatency,
    RatePoint,
)
from optcli.serving.planning import modes, notes, priorities
from optcli.serving.planning.configuring import configuration
from optcli.serving.planning.growth import breaks_first
from optcli.serving.planning.remedies import would_keep
from optcli.serving.planning.scaling import autoscaling
from optcli.serving.planning.settings import PlanSettings
from optcli.serving.planning.traffic import Traffic, traffic_of
from optcli.serving.planning.video import video_plan

STEP = "plan"
_RATE_POINTS = 10
# Where no rate is named: how often a lower one is tried, and the share of the highest one that is sure.
_LOWER_RATES = 3
_SURE = 0.97
# Rates nearer to the planned one would hide it.
_APART = 0.03
_QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
Drawn = Literal["p50", "p95", "p99"]


def make(settings: PlanSettings, known: MeasuredCurve, observer: Observer) -> Plan:
    """The plan for checked settings and a curve. Raises `UsageError` and `InputError`."""
    observer.started(STEP)
    curve = known.curve
    if not settings.promised:
        return _batch_plan(settings, known)
    _check_batch(settings, curve)
    carried = _carried(settings, curve)
    traffic = traffic_of(settings, _asked_for(settings, carried))
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
        traffic = traffic_of(settings, _asked_for(settings, carried))
        demand = demand_of(settings, traffic)
        choice = choose(curve, demand)
    return _Planning(settings, known, traffic, demand, choice, observer).plan()


def demand_of(settings: PlanSettings, traffic: Traffic) -> Demand:
    """What is asked of the queue."""
    assert settings.slo is not None
    beside = settings.overhead
    return Demand(
        process=traffic.planned,
        promise=Promise(settings.slo.limits_ms, settings.slo.error_budget),
        overhead=Overhead(
            beside.before_ms,
            beside.after_ms,
            beside.occupies_worker,
            beside.ingress_ms,
            beside.ingress_cv2,
        ),
        headroom=settings.headroom,
        utilisation=settings.utilisation,
        semantics=settings.semantics,
        concurrency=settings.concurrency,
        batch=settings.batch,
        wait_ms=settings.wait_ms,
        instances=settings.instances,
        largest_batch=settings.largest_batch,
        seed=settings.seed,
    )


def _carried(settings: PlanSettings, curve: Curve) -> float | None:
    """The rate at the model that fixed instances carry at the utilisation cap; None: one is named."""
    named = settings.rate_per_s is not None or settings.cameras is not None
    if named or settings.instances is None or settings.arrivals.startswith("trace:"):
        return None
    any_rate = Poisson(1.0)
    demand = demand_of(settings, Traffic(1.0, 1.0, any_rate))
    batches = offered_batches(curve, demand) or [(curve.sizes or (1,))[0]]
    workers = settings.instances * settings.concurrency
    capacity = max(
        formulas.capacity_per_s(
            curve,
            batch,
            workers,
            demand.occupied_ms,
            ingress_ms=settings.overhead.ingress_ms / (1 - settings.cache_hit_rate),
        )
        for batch in batches
    )
    return settings.utilisation * capacity


def _asked_for(settings: PlanSettings, at_the_model: float | None) -> float | None:
    """The mean rate that brings a rate to the model, in its peaks and without what a cache answers."""
    if at_the_model is None:
        return None
    return at_the_model / (settings.peak_factor * (1 - settings.cache_hit_rate))


def _check_batch(settings: PlanSettings, curve: Curve) -> None:
    alone = len(curve.points) == 1 and settings.batch is not None
    if alone and curve.is_extrapolated(settings.batch or 1):
        raise UsageError(
            f"the curve knows batch {curve.sizes[0]} alone, found batch {settings.batch}",
            place="--batch",
            hint="give the times of two batch sizes or more",
        )


def _batch_plan(settings: PlanSettings, known: MeasuredCurve) -> Plan:
    """A plan of work that may wait, without any promise on latency."""
    if settings.freshness_s is None:
        raise UsageError(
            "nothing is promised",
            place="--slo",
            hint="say --slo p95=120ms, or --freshness 8h where results may wait",
        )
    traffic = traffic_of(settings)
    work = modes.batch_work(settings, known.curve, traffic.mean_per_s * (1 - settings.cache_hit_rate))
    in_time = work.hours * 3600 <= settings.freshness_s
    return Plan(
        name=settings.name,
        outcome="inconclusive" if known.unfit else "kept" if in_time else "not-kept",
        sentence=notes.batch_sentence(work),
        reason=notes.batch_reason(work),
        slo_ms={},
        rate_per_s=traffic.mean_per_s,
        planned_rate_per_s=traffic.planned.rate_per_s,
        headroom=settings.headroom,
        utilisation=settings.utilisation,
        seed=settings.seed,
        curve=_curve(known, None, 0.0),
        recommended=None,
        mode=modes.mode_of(settings, work, None),
        batch_work=work,
        warnings=known.warnings,
        asked=_asked(settings),
    )


class _Planning:
    """One plan while it is put together."""

    def __init__(
        self,
        settings: PlanSettings,
        known: MeasuredCurve,
        traffic: Traffic,
        demand: Demand,
        choice: Choice,
        observer: Observer,
    ) -> None:
        self.settings, self.known, self.traffic = settings, known, traffic
        self.demand, self.choice, self.observer = demand, choice, observer
        self.curve = known.curve
        self._apart: tuple[PriorityLatency, ...] = ()

    def plan(self) -> Plan:
        best = self.choice.best
        recommended = None if best is None else self._recommended(best)
        plan = Plan(
            name=self.settings.name,
            outcome=self._outcome(recommended),
            sentence=notes.sentence(self.demand, recommended, unfit=self.known.unfit),
            reason=notes.reason(self.curve, self.demand, self.choice, recommended),
            slo_ms=notes.promised(self.demand.promise),
            rate_per_s=self.traffic.mean_per_s,
            planned_rate_per_s=self.demand.process.rate_per_s,
            headroom=self.settings.headroom,
            utilisation=self.settings.utilisation,
            seed=self.settings.seed,
            curve=_curve(self.known, self.demand.tightest_ms, self.demand.overhead.alone_ms),
            recommended=recommended,
            mode=self._mode(recommended),
            drawn=self._drawn(),
            warnings=tuple(self._warnings(recommended)),
            asked=_asked(self.settings),
        )
        more = self._where_kept(recommended) if recommended is not None else self._where_not()
        self.observer.progress(STEP, 1.0, "done")
        return plan.model_copy(update=more)

    def _outcome(
        self, recommended: Configuration | None
    ) -> Literal["kept", "not-kept", "inconclusive"]:
        if self.known.unfit:
            return "inconclusive"
        return "not-kept" if recommended is None else "kept"

    def _recommended(self, best: Tried) -> Configuration:
        assert self.choice.prediction is not None
        return configuration(
            self.settings,
            self.curve,
            self.demand,
            best.batching,
            self.choice.prediction,
            self.traffic.mean_per_s,
        )

    def _where_kept(self, recommended: Configuration) -> dict[str, object]:
        assert self.choice.best is not None
        assert self.choice.prediction is not None
        batching = self.choice.best.batching
        self._progress(0.6, "what breaks first")
        parts: dict[str, object] = {
            "breaks_first": breaks_first(self.curve, self.demand, batching),
            "runner_up": self._runner_up(recommended),
        }
        self._progress(0.75, "the operating curve")
        parts["by_batch"] = tuple(self._by_batch(batching.instances, batching.wait_ms))
        parts["by_rate"] = tuple(self._by_rate(recommended))
        settings = self.settings
        if self._varies():
            self._progress(0.85, "a step of the traffic")
            parts["autoscaling"] = autoscaling(
                self.curve,
                self.demand,
                batching,
                self.traffic.lowest_per_s * (1 - settings.cache_hit_rate),
                self.choice.prediction.mean_ms.value,
                settings.cold_start_s or 0.0,
            )
        if settings.cameras is not None and settings.semantics == "oldest-age":
            self._progress(0.9, "bursts of the cameras")
            parts["video"] = video_plan(self.curve, self.demand, batching, settings.cameras)
        if settings.priorities:
            self._progress(0.9, "the priorities")
            parts |= self._by_priority(batching)
        parts["levels"] = tuple(self._levels(batching.batch))
        advice = notes.advice(settings, self.curve, self.demand, recommended)
        parts["advice"] = (*advice, *notes.of_priorities(self._apart, recommended))
        if settings.freshness_s is not None:
            seen = self.traffic.mean_per_s * (1 - settings.cache_hit_rate)
            parts["batch_work"] = modes.batch_work(settings, self.curve, seen)
        return parts

    def _varies(self) -> bool:
        """Whether there is anything to scale: traffic of several rates, or a cold start to think of."""
        settings = self.settings
        several = isinstance(settings.rate_per_s, tuple) and len(settings.rate_per_s) > 1
        return settings.cold_start_s is not None or several or settings.peak_factor > 1

    def _where_not(self) -> dict[str, object]:
        self._progress(0.6, "what would keep the promise")
        runner_up = self.choice.tried[0] if self.choice.tried else None
        return {
            "would": would_keep(self.curve, self.demand, self.choice),
            "runner_up": runner_up
            and notes.alternative(self.demand, runner_up, self._lost(runner_up, None)),
        }

    def _progress(self, share: float, text: str) -> None:
        self.observer.progress(STEP, share, text)

    def _mode(self, recommended: Configuration | None) -> ModeAdvice:
        machines = recommended.machines if recommended else None
        return modes.mode_of(self.settings, None, machines)

    def _runner_up(self, recommended: Configuration) -> Alternative | None:
        runner_up = self.choice.runner_up
        if runner_up is None and recommended.instances > 1 and self.demand.instances is None:
            fewer = replace(self.demand, instances=recommended.instances - 1, batch=recommended.batch)
            tried = choose(self.curve, fewer)
            runner_up = tried.best or (tried.tried[0] if tried.tried else None)
        if runner_up is None:
            return None
        return notes.alternative(self.demand, runner_up, self._lost(runner_up, recommended))

    def _lost(self, other: Tried, recommended: Configuration | None) -> str:
        return notes.lost_because(self.demand, self.choice.best, other, recommended)

    def _by_batch(self, instances: int, wait_ms: float) -> Iterator[BatchPoint]:
        # Larger ones than the choice looks at, too: what they cost is the picture's point.
        every = replace(self.demand, batch=None, instances=instances)
        for batch in sorted({*offered_batches(self.curve, every), *(self.settings.batch or 0,)} - {0}):
            assert self.choice.best is not None
            batching = replace(
                self.choice.best.batching, batch=batch, wait_ms=wait_ms if batch > 1 else 0.0
            )
            run = simulated(self.curve, self.demand, batching)
            capacity = formulas.capacity_per_s(
                self.curve,
                batch,
                batching.workers,
                self.demand.occupied_ms,
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

    def _drawn(self) -> Drawn:
        """The percentile that curves show: p95, unless another one is promised alone."""
        limits = self.demand.promise.limits_ms
        names: list[Drawn] = ["p95", "p99", "p50"]
        return next((name for name in names if _QUANTILES[name] in limits), "p95")

    def _by_rate(self, recommended: Configuration) -> Iterator[RatePoint]:
        assert self.choice.best is not None
        planned = self.demand.process.rate_per_s
        highest = max(recommended.max_rate_per_s, planned)
        # At the highest rate itself a single run may lie on either side of the promise.
        rates = {highest * share / _RATE_POINTS for share in range(2, _RATE_POINTS)} | {0.96 * highest}
        rates = {rate for rate in rates if abs(rate - planned) > _APART * planned}
        rates |= {planned, highest * 1.05, highest * 1.1}
        for rate in sorted(rates):
            run = simulated(self.curve, self.demand, self.choice.best.batching, rate / planned)
            yield RatePoint(
                rate_per_s=rate,
                latency_ms=None if run.grows else run.percentile_ms(_QUANTILES[self._drawn()]),
                utilisation=rate / recommended.capacity_per_s,
            )

    def _by_priority(self, batching: Batching) -> dict[str, object]:
        """What each priority sees; where they are served apart and one breaks the promise, that too."""
        settings, demand = self.settings, self.demand
        if demand.semantics == "oldest-age":
            latencies = priorities.in_one_queue(settings, self.curve, demand, batching)
            return {"priorities": tuple(latencies)}
        lowest = self.traffic.lowest_per_s * (1 - settings.cache_hit_rate) if self._varies() else None
        mean = self.traffic.mean_per_s
        self._apart = tuple(priorities.apart(settings, self.curve, demand, mean, lowest))
        without = next((each.name for each in self._apart if each.configuration is None), None)
        if without is None:
            return {"priorities": self._apart}
        broken = notes.priority_sentence(demand, without)
        outcome = "inconclusive" if self.known.unfit else "not-kept"
        return {"priorities": self._apart, "outcome": outcome, "sentence": broken}

    def _levels(self, batch: int) -> Iterator[LevelNeed]:
        if not isinstance(self.settings.rate_per_s, tuple):
            return
        for level in self.settings.rate_per_s:
            seen = level.rate_per_s * self.settings.peak_factor * (1 - self.settings.cache_hit_rate)
            instances = by_load(self.curve, self.demand, batch, self.demand.headroom, rate_per_s=seen)
            yield LevelNeed(rate_per_s=level.rate_per_s, seconds=level.seconds, instances=instances)

    def _warnings(self, recommended: Configuration | None) -> Iterator[PlanNote]:
        yield from self.known.warnings
        yield from notes.doubts(self.settings, self.curve, self.demand, self.choice, recommended)


def _curve(known: MeasuredCurve, limit_ms: float | None, overhead_ms: float) -> PlanCurve:
    curve = known.curve
    room = None if limit_ms is None else limit_ms - overhead_ms
    return PlanCurve(
        source=known.source,
        points_ms=dict(curve.points),
        fixed_ms=curve.fixed_ms,
        per_image_ms=curve.per_image_ms,
        largest_residual=curve.largest_residual if curve.points else None,
        measured=bool(curve.samples_ms),
        largest_within_slo=None
        if room is None or not curve.sizes
        else curve.largest_within(room, curve.sizes),
        largest_by_the_line=None if room is None else curve.largest_on_line(room),
        compiled=() if known.forms is None else tuple(sorted(known.forms.compiled)),
        padded_from={size: first for first, size in curve.padded},
        between_ms=dict(curve.between),
    )


def _asked(settings: PlanSettings) -> dict[str, object]:
    return settings.model_dump(mode="json", exclude_none=True)
