"""The batch sweep: one artifact at batch sizes 1, 2, 4, ..., alone on the machine.

A first launch goes up the sizes until something ends it: memory, the time cap, throughput that grows
no more, or the largest size. Then several launches, fresh processes each, time all sizes in short
rounds in random order: a launch is what varies, so intervals and the fit are over launches.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from optcli.errors import OptcliError
from optcli.measure.latency.fit import fit
from optcli.measure.latency.launches import (
    counted_launches,
    in_ms,
    is_quiet,
    is_surely_over,
    lost_of,
    quiet_rounds,
    spread_of,
)
from optcli.measure.latency.messages import Command, HeldMemory, Opening, WarmUp, ask
from optcli.measure.latency.plan import LaunchPlan, SweepOrder
from optcli.measure.latency.quality import fitness_flags, too_few
from optcli.measure.latency.samples import ArtifactRun, Series
from optcli.measure.latency.session import started
from optcli.measure.latency.summary import milliseconds
from optcli.observer import Observer
from optcli.results import Budget, Estimate, Sweep, SweepPoint
from optcli.results.statistics import needed, percentile, percentile_over_rounds
from optcli.settings import TensorSpec, batch_range
from optcli.settings.latency import SweepSettings
from optcli.workers import Child, memory

# A smaller batch that gives so much more is named.
_WORTH_NAMING = 1.02

ROUNDS = 2
LEAD_IN = 1
LEAST_CALLS = 2
WARM_CALLS = 5
# With every doubling hardly more images a second for so many times, throughput grows no more.
_STALE = 2
_GROWS = 1.01
# A launch in which the machine was not quiet does not count; one of five may be lost.
_SPARE = 1.25

_MEMORY_SHARE = 0.7
# Launches end where the machine turns out to be so many times as slow as planned.
_PATIENCE = 2


def sweep(
    order: SweepOrder, log: Path, observer: Observer, *, available_bytes: int | None = None
) -> Sweep:
    """Measure one artifact over batch sizes.

    `available_bytes` is what its process may take; default: what is free. Raises `OptcliError` where
    the artifact cannot be run at its smallest batch size.
    """
    run = _SweepRun(order, log, observer, available_bytes)
    start = datetime.now(UTC)
    observer.started(run.step)
    measured = run.carry_out(start.astimezone().isoformat(timespec="seconds"))
    observer.finished(run.step, (datetime.now(UTC) - start).total_seconds())
    return measured


@dataclass
class _SweepRun:
    order: SweepOrder
    log: Path
    observer: Observer
    available_bytes: int | None
    usual_ns: dict[int, float] = field(default_factory=dict)
    held_bytes: dict[int, int] = field(default_factory=dict)
    padded: dict[int, int] = field(default_factory=dict)
    threads: int | None = None

    @property
    def step(self) -> str:
        return f"{self.order.candidate.name} › sweep"

    def carry_out(self, measured_at: str) -> Sweep:
        sizes = swept_sizes(self.order.inputs, self.order.settings.max)
        with self._launched(sizes) as child:
            stopped = self._explore(child, sizes)
        calls = allot(self.usual_ns, self.order.settings, self.order.p99_ms and self.order.p99_ms * 1e6)
        takes = {
            size: ArtifactRun(self.order.candidate.name, size, 0, LaunchPlan(ROUNDS, calls[size]))
            for size in calls
        }
        launches, spent_s = 0, 0.0
        while launches < self.order.settings.launches:
            if launches >= 2 and spent_s > _PATIENCE * self.order.settings.max_seconds:
                break
            self._launch(launches, takes)
            launches += 1
            spent_s = sum(sum(row.ns) for take in takes.values() for row in take.rows) / 1e9
        series = {size: take.series() for size, take in takes.items()}
        points = tuple(self._point(series[size]) for size in calls)
        sound = [point.batch_size for point in points if point.fit]
        return Sweep(
            points=points,
            fit=fit(sound, _medians_ms([series[size] for size in sound])),
            budget=None if self.order.p99_ms is None else budget(points, self.order.p99_ms, stopped),
            stopped_because=stopped,
            launches=launches,
            threads=self.threads,
            measured_at=measured_at,
        )

    def _launched(self, sizes: Sequence[int]) -> Child:
        """A fresh process that can run the artifact at these sizes, with the artifact open."""
        child = started(self.order.candidate, self.order, sizes, self.log)
        try:
            self.threads = ask(child, Command("open"), Opening).threads
        except OptcliError:
            child.kill()
            raise
        return child

    def _explore(self, child: Child, sizes: Sequence[int]) -> str:
        """Go up the sizes; says why no further. Fills `usual_ns`, `held_bytes` and `padded`."""
        for number, size in enumerate(sizes):
            self.observer.progress(self.step, number / len(sizes) / 5, f"batch {size}")
            reason = self._enough(size)
            if reason is not None:
                return reason
            try:
                warm = self._warm(child, size)
                held = ask(child, Command("memory"), HeldMemory)
            except OptcliError as error:
                if not self.usual_ns:
                    raise
                child.kill()
                return f"batch size {size} failed: {error.message}"
            self.usual_ns[size] = warm.usual_ns
            self.held_bytes[size] = held.peak_memory_bytes or 0
            # Another launch decides anew, and otherwise only where both take the same time.
            larger = held.observed.get("padded_batch_sizes", {}).get(str(size))
            if larger is not None:
                self.padded[size] = larger
        top, most = sizes[-1], self.order.settings.max
        return f"{top} is the largest " + ("wanted" if top == most else "the model takes")

    def _enough(self, size: int) -> str | None:
        """Why not to go on to this size; the first two are measured whatever they take."""
        sizes = list(self.usual_ns)
        if len(sizes) < 2:
            return None
        last, before = sizes[-1], sizes[-2]
        more = (self.held_bytes[last] - self.held_bytes[before]) * (size - last) // (last - before)
        free = memory.available_bytes() if self.available_bytes is None else self.available_bytes
        if more > _MEMORY_SHARE * free:
            return f"memory: batch size {size} would take {more / 1e6:.0f} MB more"
        expected = {**self.usual_ns, size: self.usual_ns[last] * size / last}
        # p99 of the sizes that decide the budget takes more time than anything else.
        decides = (
            self.order.p99_ms is not None and min(self.usual_ns.values()) <= self.order.p99_ms * 1e6
        )
        least_s = cost_s(expected, dict.fromkeys(expected, LEAST_CALLS), self.order.settings)
        if least_s > self.order.settings.max_seconds / (2 if decides else 1):
            return (
                f"time cap: batch size {size} does not fit into {self.order.settings.max_seconds:g} s"
            )
        passed = self.order.p99_ms is None or self.usual_ns[last] > self.order.p99_ms * 1e6
        if passed and grows_no_more({each: each / ns for each, ns in self.usual_ns.items()}):
            return "throughput stopped growing"
        return None

    def _warm(self, child: Child, size: int) -> WarmUp:
        command = Command("warm", size, WARM_CALLS, self.order.settings.max_seconds / 20)
        return ask(child, command, WarmUp)

    def _launch(self, number: int, takes: Mapping[int, ArtifactRun]) -> None:
        """One launch: the rounds of every batch size, in random order."""
        order = random.Random(f"{self.order.seed}/{number}")  # noqa: S311 - turns, not secrets
        with self._launched(list(takes)) as child:
            for size, take in takes.items():
                self._warm(child, size)
                take.begin_launch(number, self.usual_ns[size])
            for turn in range(ROUNDS):
                share = (number + turn / ROUNDS) / self.order.settings.launches
                text = f"launch {number + 1} of {self.order.settings.launches}"
                self.observer.progress(self.step, 0.2 + 0.8 * share, text)
                turns = list(takes)
                order.shuffle(turns)
                for size in turns:
                    takes[size].take_turn(child, LEAD_IN)

    def _point(self, series: Series) -> SweepPoint:
        """The point of one batch size, from the launches that count, or from all where too few do."""
        quiet = is_quiet(series, self.order.settings.launches)
        counted = series.rows(quiet_rounds(series)) if quiet else series
        launches = list(counted.launches.values())
        p50, p99 = (percentile_over_rounds(launches, q) for q in (0.5, 0.99))
        assert p50 is not None
        return SweepPoint(
            batch_size=series.batch_size,
            p50_ms=in_ms(p50),
            p99_ms=p99 and in_ms(p99),
            throughput_per_s=series.batch_size * counted.ns.size / float(counted.ns.sum()) * 1e9,
            samples=int(counted.ns.size),
            quantiles_ms=tuple(milliseconds(counted.ns)),
            peak_memory_bytes=self.held_bytes[series.batch_size] or None,
            spread=round(spread_of(counted), 4),
            waited=round(lost_of(counted), 4),
            padded_to=self.padded.get(series.batch_size),
            fit=quiet,
            flags=(
                *too_few(counted, (99,)),
                *fitness_flags(series, counted, fit=quiet),
            ),
        )


def _medians_ms(series: Sequence[Series]) -> list[list[float]]:
    """By launch, the median at each batch size: of launches that count at all of them, or of all."""
    if not series:
        return []
    counted = [set(counted_launches(each)) for each in series]
    everywhere = sorted(set.intersection(*counted))
    launches = everywhere if len(everywhere) > 1 else sorted(series[0].launches)
    return [[percentile(each.launches[launch], 0.5) / 1e6 for each in series] for launch in launches]


def swept_sizes(inputs: Sequence[TensorSpec], most: int) -> tuple[int, ...]:
    """The batch sizes of a sweep: doublings from the smallest the model takes, and the largest."""
    allowed = batch_range(inputs)
    top = max(allowed.min, min(allowed.max, most))
    sizes = [allowed.min]
    while sizes[-1] * 2 <= top:
        sizes.append(sizes[-1] * 2)
    return tuple(dict.fromkeys([*sizes, top]))


def allot(
    usual_ns: Mapping[int, float], settings: SweepSettings, limit_ns: float | None
) -> dict[int, int]:
    """Timed calls per round at every batch size, as many as the time cap allows.

    First p99 of the two largest sizes that may keep the limit; then more for all, the small first.
    """
    sizes = sorted(usual_ns)
    decide = [size for size in reversed(sizes) if limit_ns and usual_ns[size] <= limit_ns][:2]
    calls = dict.fromkeys(sizes, LEAST_CALLS)
    enough, plenty = math.ceil(_SPARE * needed(0.99)), 1000
    for samples, chosen in (
        (enough, decide),
        (100, sizes),
        (enough, sizes),
        (plenty, decide),
        (plenty, sizes),
    ):
        per_round = math.ceil(samples / (settings.launches * ROUNDS))
        for size in chosen:
            trial = {**calls, size: max(calls[size], per_round)}
            if cost_s(usual_ns, trial, settings) <= settings.max_seconds:
                calls = trial
    return calls


def cost_s(usual_ns: Mapping[int, float], calls: Mapping[int, int], settings: SweepSettings) -> float:
    """Seconds that all launches spend in calls."""
    totals = {size: WARM_CALLS + ROUNDS * (LEAD_IN + count) for size, count in calls.items()}
    return settings.launches * sum(usual_ns[size] * count for size, count in totals.items()) / 1e9


def grows_no_more(rates: Mapping[int, float]) -> bool:
    """Whether the last batch sizes all give hardly more images a second than the best before them."""
    values = list(rates.values())
    earlier, last = values[:-_STALE], values[-_STALE:]
    return bool(earlier) and max(last) < _GROWS * max(earlier)


def budget(points: Sequence[SweepPoint], p99_ms: float, stopped_because: str) -> Budget:
    """The largest measured batch size whose p99 is within `p99_ms`, by its interval's upper bound.

    Points that are not fit decide nothing: they are in doubt whatever their figures say.
    """
    inside = [
        point
        for point in points
        if point.fit and point.p99_ms and point.p99_ms.high and point.p99_ms.high <= p99_ms
    ]
    chosen = inside[-1] if inside else None
    larger = [each for each in points if chosen is None or each.batch_size > chosen.batch_size]
    doubt = next((reason for each in larger if (reason := _doubt(each, p99_ms))), "")
    if chosen is None:
        words = [f"no batch size is known to be within {p99_ms:g} ms at p99"]
        words += [doubt or _too_slow(points)]
        return Budget(p99_ms=p99_ms, sentence="; ".join(filter(None, words)))
    words = [
        f"within {p99_ms:g} ms at p99: batch {chosen.batch_size}, {_rate(chosen)} images/s",
        doubt,
    ]
    if not larger:
        words.append(f"no larger one was measured ({stopped_because})")
    best = max(inside, key=lambda point: point.throughput_per_s)
    if best.throughput_per_s > _WORTH_NAMING * chosen.throughput_per_s:
        words.append(f"batch {best.batch_size} gives more: {_rate(best)} images/s")
    return Budget(
        p99_ms=p99_ms,
        batch_size=chosen.batch_size,
        throughput_per_s=chosen.throughput_per_s,
        sentence="; ".join(filter(None, words)),
    )


def _doubt(point: SweepPoint, limit_ms: float) -> str:
    """Why a batch size that may be inside is not said to be; empty where it clearly is not."""
    if not point.fit:
        return f"batch {point.batch_size} is not decided: other work disturbed it"
    if point.p50_ms.value > limit_ms:
        return ""
    if point.p99_ms is None:
        return (
            f"batch {point.batch_size} is not decided: p99 needs {needed(0.99)} calls,"
            f" {point.samples} fit into the time cap"
        )
    if is_surely_over({0.5: point.p50_ms, 0.99: point.p99_ms}, limit_ms, point.waited or 0.0):
        return ""
    if point.p99_ms.low is not None and point.p99_ms.low > limit_ms:
        return f"batch {point.batch_size} is not decided: other work may have caused its p99"
    return f"batch {point.batch_size} is not clearly within the limit (p99 {_interval(point.p99_ms)})"


def _too_slow(points: Sequence[SweepPoint]) -> str:
    if not points:
        return ""
    first = next((point for point in points if point.fit), points[0])
    name, shown = ("p99", first.p99_ms) if first.p99_ms else ("p50", first.p50_ms)
    return f"batch {first.batch_size} takes {_interval(shown)} at {name}"


def _interval(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.3g} ms"
    return f"{estimate.value:.3g} ms [{estimate.low:.3g}, {estimate.high:.3g}]"


def _rate(point: SweepPoint) -> str:
    rate = point.throughput_per_s
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"
