"""One variant's latency against the baseline's: launch pairs until it is decided, then sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median

from optcli.errors import RunnerError
from optcli.gate import comparisons
from optcli.gate.baselines import BaselineVariant
from optcli.gate.rule import ComparedFigure, Decision, Rule, planned, until_decided
from optcli.gate.side import Gating, Side
from optcli.measure import latency
from optcli.measure.latency import Candidate, LatencyOrder, Measured
from optcli.measure.latency.feeds import choose_batch_sizes
from optcli.measure.latency.launches import MEMORY_SLACK_BYTES
from optcli.pipeline.places import HERE, PairMeasurement, Place
from optcli.results import Estimate, Flag, Latency
from optcli.results.flags import FlagKind
from optcli.results.gate import Comparison, Metric, Unit
from optcli.results.outcomes import SERVICE_LEVEL
from optcli.results.statistics import log_ratios, needed
from optcli.settings.gate import GateBar, GateSettings
from optcli.settings.latency import LatencySettings
from optcli.settings.slo import SloSettings

# From so many calls on a round has a 95th percentile of its own; else a launch has one.
_CALLS_FOR_P95 = 60
_DISTURBED = "other work disturbed it"
# The gate has its own ratios, from launch pairs.
_NO_SPEEDUP: tuple[FlagKind, ...] = ("no-speedup", "no-speedup-on-device")
STEP = "gate"


@dataclass(frozen=True)
class Timed:
    """What launch pairs of one variant gave; `measured` holds the raw samples."""

    comparisons: tuple[Comparison, ...]
    measured: Measured
    flags: tuple[Flag, ...]


def threads_of(settings: GateSettings, place: Place = HERE) -> int:
    """Threads of each artifact: one core is left to what else runs on a shared machine."""
    return settings.threads or max(1, int(place.environment(())["cores"]) - 1)


def candidate(
    name: str, variant: BaselineVariant, settings: GateSettings, place: Place = HERE
) -> Candidate:
    """An artifact as the gate runs it."""
    options = {**variant.options, "threads": threads_of(settings, place)}
    return Candidate(name, variant.artifact, variant.runner, options)


def alone(gating: Gating, side: Side, place: Place) -> list[Latency]:
    """The candidate measured by itself, now. Raises `RunnerError` where it cannot be."""
    settings = LatencySettings(
        mode="table",
        batch_sizes=gating.settings.batch_sizes,
        threads=threads_of(gating.settings, place),
    )
    recipe = gating.made.plan.recipe
    order = LatencyOrder(
        candidates=(candidate(side.name, side.candidate, gating.settings, place),),
        baseline=side.name,
        inputs=recipe.inputs,
        feeds=gating.made.feeds,
        settings=settings,
        seed=recipe.seed,
    )
    measured = place.measure(STEP, order, gating.logs, gating.observer)
    for reason in measured.failures.values():
        raise RunnerError(reason, place=f"{side.name} › gate")
    return [row for row in latency.to_results(measured)[side.name] if row.region == "host"]


def bars(settings: GateSettings, batch_sizes: Sequence[int]) -> dict[ComparedFigure, GateBar]:
    """The figures that are judged, each with its bar."""
    bar_of = {0.5: settings.p50, 0.95: settings.p95}
    return {
        ComparedFigure(q, size): bar
        for size in batch_sizes
        for q, bar in bar_of.items()
        if bar is not None
    }


def compare(
    gating: Gating,
    baseline: Candidate,
    candidate: Candidate,
    variants: int,
    seed: int,
    place: Place = HERE,
) -> Timed:
    """Measure a variant against its baseline at a place until it is decided.

    `variants` is how many variants the gate judges: they share its error rate. Raises `RunnerError`
    where one of the two cannot be measured.
    """
    settings, inputs = gating.settings, gating.made.plan.recipe.inputs
    observer = gating.observer
    measuring = LatencySettings(
        mode="gate",
        batch_sizes=settings.batch_sizes,
        threads=threads_of(settings, place),
        launches=settings.looks[-1],
        max_seconds=settings.max_seconds,
    )
    order = LatencyOrder(
        candidates=(baseline, candidate),
        baseline=baseline.name,
        inputs=inputs,
        feeds=gating.made.feeds,
        settings=measuring,
        seed=seed,
    )
    pairs = _Launched(place.pairs(STEP, order, gating.logs, observer), candidate.name)
    sizes, _ = choose_batch_sizes(inputs, settings.batch_sizes)
    judged_bars = bars(settings, sizes)
    rules = {
        figure: planned(bar, settings, len(judged_bars) * variants)
        for figure, bar in judged_bars.items()
    }
    advice = [figure for figure, bar in judged_bars.items() if bar.undecided == "advice"]

    def progress(done: int, most: int) -> None:
        observer.progress(STEP, done / most, f"{candidate.name}: {done} of at most {most} launch pairs")

    decisions = until_decided(pairs, rules, advice, settings.max_seconds, progress)
    measured = pairs.measured
    assert measured is not None
    rows = latency.to_results(measured)
    candidate_rows, baseline_rows = rows[candidate.name], rows[baseline.name]
    judged = [
        *latencies(decisions, rules, judged_bars, candidate_rows, baseline_rows),
        *_p99(candidate_rows, baseline_rows),
        *service_level(candidate_rows, gating.slo, candidate.artifact.size_bytes),
        *_memory(candidate_rows, baseline_rows, settings),
    ]
    doubts = [flag for row in candidate_rows for flag in row.flags if flag.kind not in _NO_SPEEDUP]
    return Timed(tuple(judged), measured, tuple({flag.text: flag for flag in doubts}.values()))


class _Launched:
    """`PairMeasurement` of real processes."""

    def __init__(self, pairs: PairMeasurement, name: str) -> None:
        self._pairs, self._name = pairs, name
        self.measured: Measured | None = None

    def measure(self, count: int) -> None:
        self.measured = self._pairs.measure(count)
        for name, reason in self.measured.failures.items():
            raise RunnerError(reason, place=f"{name} › gate")

    def log_ratios(self, figure: ComparedFigure) -> Sequence[float]:
        assert self.measured is not None
        series = next(
            each
            for each in self.measured.series
            if (each.name, each.batch_size) == (self._name, figure.batch_size)
        )
        other = self.measured.paired_with(series, self.measured.baseline)
        assert other is not None
        ratios = []
        for rounds in series.paired(other).values():
            candidate, baseline = (
                [candidate for candidate, _ in rounds],
                [baseline for _, baseline in rounds],
            )
            if figure.q == 0.5 or min(map(len, candidate)) >= _CALLS_FOR_P95:
                ratios.append(median(log_ratios(candidate, baseline, figure.q)))
            elif sum(map(len, candidate)) >= needed(figure.q):
                ratios += log_ratios([[*chain(*candidate)]], [[*chain(*baseline)]], figure.q)
        return ratios


def latencies(
    decisions: Mapping[ComparedFigure, Decision],
    rules: Mapping[ComparedFigure, Rule],
    judged_bars: Mapping[ComparedFigure, GateBar],
    candidate: Sequence[Latency],
    baseline: Sequence[Latency],
) -> list[Comparison]:
    """Every figure that has a bar. One without data passes only where its bar is advice.

    What was measured on a machine that was not fit is inconclusive, whichever way it points.
    """
    compared = []
    for figure, bar in judged_bars.items():
        metric: Metric = "p50" if figure.q == 0.5 else "p95"
        blocks = bar.undecided == "blocks"
        new, old = (_value(rows, figure) for rows in (candidate, baseline))
        if figure in decisions and new is not None and old is not None:
            comparison = comparisons.latency(
                metric, figure.batch_size, old, new, decisions[figure], rules[figure], bar
            )
            doubt = _unfit([*candidate, *baseline], figure.batch_size)
            if doubt is not None:
                comparison = comparisons.unfit(comparison, doubt, blocks=blocks)
            compared.append(comparison)
        else:
            why = f"too few calls for {metric}"
            if blocks:
                why += f": raise gate.max_seconds, or set gate.{metric}.undecided: advice"
            compared.append(comparisons.not_compared(metric, why, figure.batch_size, blocks=blocks))
    return compared


def _unfit(rows: Sequence[Latency], batch_size: int) -> str | None:
    """What a row says of its machine, where it was not quiet enough; None: it was."""
    for row in rows:
        if row.batch_size == batch_size and row.region == "host" and not row.fit:
            doubts = [flag.text for flag in row.flags if flag.kind == "environment-not-fit"]
            return doubts[0] if doubts else _DISTURBED
    return None


def _value(rows: Sequence[Latency], figure: ComparedFigure) -> float | None:
    row = next((r for r in rows if r.region == "host" and r.batch_size == figure.batch_size), None)
    if row is None:
        return None
    estimate: Estimate | None = getattr(row, f"{figure.metric}_ms")
    return None if estimate is None else estimate.value


def _p99(candidate: Sequence[Latency], baseline: Sequence[Latency]) -> list[Comparison]:
    both = [
        (a, b)
        for a in candidate
        for b in baseline
        if (a.batch_size, a.region) == (b.batch_size, b.region)
    ]
    return [
        comparisons.reported("p99", new.batch_size, old.p99_ms.value, new.p99_ms.value)
        if new.p99_ms and old.p99_ms
        else comparisons.not_compared("p99", "too few calls for p99", new.batch_size, blocks=False)
        for new, old in both
    ]


def service_level(
    rows: Sequence[Latency], slo: SloSettings | None, size_bytes: int
) -> list[Comparison]:
    """The comparisons with the bounds of `slo`; times are inconclusive on a machine that is not fit."""
    compared = []
    promised = latency.verdicts(rows, LatencySettings(), slo, "", size_bytes=size_bytes)
    for verdict in promised:
        if not verdict.name.startswith(SERVICE_LEVEL):
            continue
        unit: Unit = "bytes" if verdict.name.endswith("_bytes") else "ms"
        judged = comparisons.judged("slo", unit, verdict)
        doubt = _unfit(rows, min(row.batch_size for row in rows)) if rows and unit == "ms" else None
        if doubt is not None and verdict.outcome != "inconclusive":
            judged = comparisons.unfit(judged, doubt, blocks=judged.blocking)
        compared.append(judged)
    return compared


def _memory(
    candidate: Sequence[Latency], baseline: Sequence[Latency], settings: GateSettings
) -> list[Comparison]:
    new = [row.peak_memory_bytes for row in candidate if row.peak_memory_bytes is not None]
    old = [row.peak_memory_bytes for row in baseline if row.peak_memory_bytes is not None]
    if settings.max_memory_growth is None:
        return []
    if not new and not old:
        why = "this system does not report peak memory"
        return [comparisons.not_compared("memory", why, blocks=False)]
    if not new or not old:
        return [comparisons.not_compared("memory", "peak memory was measured on one side only")]
    return [
        comparisons.plain(
            "memory",
            "peak memory",
            "bytes",
            max(old),
            max(new),
            settings.max_memory_growth,
            MEMORY_SLACK_BYTES,
        )
    ]
