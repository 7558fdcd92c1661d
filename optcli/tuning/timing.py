"""The speed of one trial, in turns with the best so far, or with the reference where there is none.

Where the best is timed beside a trial, the reference is not: in float its calls are the longest, and
what the best gains over it is known. A trial that is behind the best beyond doubt after one launch
has no second one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from optcli.errors import StepError
from optcli.measure import latency
from optcli.measure.latency import Measured
from optcli.pipeline.making import BuiltPlan
from optcli.recipe import Recipe
from optcli.results import Estimate, Latency
from optcli.results.tuning import TuningTrial, geometric_mean, product, scaled
from optcli.settings.latency import LatencySettings
from optcli.tuning.trial_runner import TrialRunner, artifact

# What the variants of a trial are called that it is timed beside.
REFERENCE, BEST = "reference", "best"
# Objectives by which a trial that has longer calls than the best one is behind it.
_RACING = ("p50", "throughput")
_LAUNCHES = 2
_SECONDS = 3.0


def quick(
    made: BuiltPlan, batch_sizes: Sequence[int], launches: int, max_seconds: float
) -> LatencySettings:
    """Settings by which trials are timed."""
    changes = {"batch_sizes": tuple(batch_sizes), "launches": launches, "max_seconds": max_seconds}
    return LatencySettings.model_validate({"mode": "quick", "threads": made.plan.threads, **changes})


@dataclass(frozen=True)
class Timing:
    """Times the trials of a recipe at the batch sizes that its objective is about."""

    recipe: Recipe
    batch_sizes: tuple[int, ...]

    @property
    def races(self) -> bool:
        """Whether a trial with longer calls than the best one is behind it."""
        return self.recipe.tune.objective in _RACING

    def companions(self, best: TuningTrial | None) -> tuple[str, ...]:
        """What a trial is timed beside, where `best` is the best so far, and not the reference.

        Other objectives than short calls need figures of the reference, such as its memory.
        """
        if best is None:
            return (REFERENCE,)
        is_known = all(size in best.speedups for size in self.batch_sizes)
        return (BEST,) if self.races and is_known else (REFERENCE, BEST)

    def timed(
        self,
        trial_runner: TrialRunner,
        made: BuiltPlan,
        names: Sequence[str],
        trial: TuningTrial,
        best: TuningTrial | None = None,
        *,
        may_end: bool = False,
    ) -> TuningTrial:
        """The trial, the last of `names`, with its speed over the reference, and over the best so far.

        The first of `names` is the reference, or `best` where that stands in for it. `best` is the
        best so far, which may be the reference itself. Where the trial `may_end`, it has no second
        launch if the first shows that it is behind.
        """
        objective = self.recipe.tune.objective
        wants_p99 = objective == "p99" or bool(self.recipe.slo and self.recipe.slo.p99_ms)
        settings = quick(made, self.measured_sizes(), _LAUNCHES, _SECONDS)
        first, name = names[0], names[-1]
        over = BEST if BEST in names else REFERENCE
        measured = trial_runner.measure(
            made,
            names,
            settings,
            self.recipe.seed + trial.number,
            wants_p99=wants_p99,
            enough=self._is_behind(name, over) if may_end and self.races else None,
        )
        for failed, reason in measured.failures.items():
            raise StepError(reason, place=f"{failed} › latency")
        results = latency.to_results(measured)
        rows = {row.batch_size: row for row in results[name] if row.region == "host"}
        other = {row.batch_size: row for row in results[first] if row.region == "host"}
        ratios = _ratios(measured, name, first, self.batch_sizes) if len(names) > 1 else {}
        gained = dict.fromkeys(self.batch_sizes, Estimate(value=1.0, low=1.0, high=1.0))
        if first == BEST and best is not None:
            gained |= best.speedups
        speedups = {size: product(gained[size], ratio) for size, ratio in ratios.items()}
        ahead = geometric_mean(list(_ratios(measured, name, over, self.batch_sizes).values()))
        score = _score(objective, self.batch_sizes, rows, other, speedups, gained)
        if objective == "size":
            base = artifact(made, first).size_bytes
            score = Estimate(value=base / max(1, trial.size_bytes or 1))
        memory = [row.peak_memory_bytes for row in rows.values() if row.peak_memory_bytes]
        return trial.model_copy(
            update={
                "speedups": speedups,
                "ahead": ahead if self.races and best is not None else None,
                "score": score,
                "p50_ms": {s: row.p50_ms.value for s, row in rows.items() if s in self.batch_sizes},
                "memory_bytes": max(memory, default=None),
                "promises_kept": self.keeps_promises(rows, trial),
            }
        )

    def measured_sizes(self) -> tuple[int, ...]:
        """Those that the objective is about, and the one that the service level is about."""
        slo = self.recipe.slo
        if slo is None or not slo.percentiles_ms:
            return self.batch_sizes
        return tuple(sorted({*self.batch_sizes, min(self.recipe.latency.batch_sizes)}))

    def keeps_promises(self, rows: Mapping[int, Latency], trial: TuningTrial) -> bool:
        """Whether service level and largest size are kept, by the figures as they are."""
        most = self.recipe.tune.max_size_mb
        if most is not None and (trial.size_bytes or 0) > most * 1e6:
            return False
        slo, row = self.recipe.slo, rows[min(rows)] if rows else None
        if slo is None or row is None:
            return True
        # Where a percentile needs more calls, a lower one that breaks its limit says enough.
        p95_ms = row.p95_ms or row.p50_ms
        p99_ms = row.p99_ms or p95_ms
        figures = {"p50_ms": row.p50_ms, "p95_ms": p95_ms, "p99_ms": p99_ms}
        if any(figures[name].value > limit for name, limit in slo.percentiles_ms.items()):
            return False
        others = latency.resources([*rows.values()], slo, trial.size_bytes, blocking=True)
        return all((each.actual or 0) <= (each.limit or 0) for each in others)

    def _is_behind(self, name: str, over: str) -> Callable[[Measured], bool]:
        """Whether a trial is slower than what it is `over` beyond doubt, by what was measured so far.

        The interval of a single launch allows for what launches of one artifact differ by.
        """

        def is_behind(so_far: Measured) -> bool:
            ratios = _ratios(so_far, name, over, self.batch_sizes)
            ahead = geometric_mean(list(ratios.values()))
            if ahead is None or ahead.high is None or len(ratios) < len(self.batch_sizes):
                return False
            return ahead.high < 1.0

        return is_behind


def _ratios(
    measured: Measured, name: str, over: str, batch_sizes: Sequence[int]
) -> dict[int, Estimate]:
    ratios = {size: latency.speedup(measured, name, over, size) for size in batch_sizes}
    return {size: ratio for size, ratio in ratios.items() if ratio is not None}


def _score(
    objective: str,
    batch_sizes: Sequence[int],
    rows: Mapping[int, Latency],
    other: Mapping[int, Latency],
    speedups: Mapping[int, Estimate],
    gained: Mapping[int, Estimate],
) -> Estimate | None:
    """The objective as a multiple of the reference's; larger is better. None where nothing is known.

    `other` has what was timed beside the trial, and `gained` its speed over the reference. Where the
    machine was not quiet enough for a ratio at a batch size, the medians' one stands in without an
    interval: the search goes on, and nothing is decided by it at the end.
    """
    if objective == "memory":
        pairs = [(other[size].peak_memory_bytes, rows[size].peak_memory_bytes) for size in rows]
        ratios = [base / own for base, own in pairs if base and own]
        return geometric_mean([Estimate(value=each) for each in ratios])
    ratios_by_size = []
    for size in batch_sizes:
        if size not in rows or size not in other:
            continue
        if objective == "p99":
            base, own = other[size].p99_ms, rows[size].p99_ms
            if base is not None and own is not None:
                ratios_by_size.append(Estimate(value=base.value / own.value))
                continue
        medians = other[size].p50_ms.value / rows[size].p50_ms.value
        ratio = speedups.get(size, Estimate(value=gained[size].value * medians))
        if objective == "cost":
            ratio = scaled(ratio, other[size].threads / rows[size].threads)
        ratios_by_size.append(ratio)
    return geometric_mean(ratios_by_size)
