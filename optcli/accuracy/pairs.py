"""A variant beside the baseline: the same samples, one by one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from optcli import environment
from optcli.accuracy import resampling
from optcli.accuracy.evaluation import Evaluation
from optcli.errors import InputError
from optcli.results.outcomes import Accuracy, ClassChange, Estimate, Figure, OutputError
from optcli.statistics import drop_interval, mcnemar

if TYPE_CHECKING:
    import numpy as np

_CHUNK_BYTES = 16 * 1024**2
_CLASSES_SHOWN = 5


def compare(variant: Evaluation, baseline: Evaluation, confidence: float = 0.95) -> Accuracy:
    """Accuracy of a variant against the baseline (which may be compared with itself).

    The drop's 95 % interval, and its one-sided bounds at `confidence`, are Tango's score interval on
    the samples whose correctness differs; for metrics that are no share of right samples, BCa's of the
    paired bootstrap. Raises `InputError` where the two did not see the same samples in order.
    """
    import numpy as np

    if not np.array_equal(variant.ids(), baseline.ids()):
        raise InputError(
            "the variant and the baseline were evaluated on different samples",
            place=str(variant.folder),
            hint="evaluate both again: optcli build --remeasure",
        )
    found: dict[str, Any] = {
        "samples": variant.samples,
        "output_error": output_error(variant, baseline),
        "agreement": _agreement(variant, baseline),
        "stability": variant.stability,
        "doubts": variant.doubts,
        "full_range_weights": variant.full_range,
        "runner": variant.runner,
        "precision": variant.effective.get("precision"),
        "isa": environment.isa(),
    }
    if variant.metric is None or variant.metric != baseline.metric:
        return Accuracy(metric=None, value=None, baseline=None, **found)
    assert variant.value is not None
    assert baseline.value is not None
    figures = {
        name: Figure(value=value, baseline=baseline.figures[name])
        for name, value in variant.figures.items()
        if name in baseline.figures and name != variant.metric
    }
    return Accuracy(
        metric=variant.metric,
        value=variant.value,
        baseline=baseline.value,
        better="lower" if variant.better == "lower" else "higher",
        confidence=confidence,
        figures=figures,
        **(_counted(variant, baseline, confidence) or _bootstrapped(variant, baseline, confidence)),
        **found,
    )


def _counted(variant: Evaluation, baseline: Evaluation, confidence: float) -> dict[str, Any] | None:
    """Counts of samples that changed sides, and what follows; None for metrics of another kind."""
    mine, theirs = variant.array("correct"), baseline.array("correct")
    if mine is None or theirs is None:
        return None
    regressed, improved = int((theirs & ~mine).sum()), int((mine & ~theirs).sum())
    value = (regressed - improved) / variant.samples
    low, high = drop_interval(regressed, improved, variant.samples)
    least, most = drop_interval(regressed, improved, variant.samples, 2 * confidence - 1)
    return {
        "drop": Estimate(value=value, low=low, high=high),
        "bounds": Estimate(value=value, low=least, high=most),
        "regressed": regressed,
        "improved": improved,
        "mcnemar_p": mcnemar(regressed, improved),
        "classes": _class_changes(variant.array("label"), mine, theirs),
    }


def _bootstrapped(variant: Evaluation, baseline: Evaluation, confidence: float) -> dict[str, Any]:
    """The drop with BCa's interval over resamples of the same samples."""
    assert variant.value is not None
    assert baseline.value is not None
    sign = -1 if variant.better == "lower" else 1
    value = sign * (baseline.value - variant.value)
    drops, without = (
        _finite(sign, variant.array(name), baseline.array(name)) for name in ("resampled", "left_out")
    )
    if not len(drops):
        return {"drop": Estimate(value=value)}
    shares = (0.025, 0.975, 1 - confidence, confidence)
    low, high, least, most = resampling.bca(value, drops, without, shares)
    return {
        "drop": Estimate(value=value, low=low, high=high),
        "bounds": Estimate(value=value, low=least, high=most),
    }


def _finite(sign: int, mine: np.ndarray | None, theirs: np.ndarray | None) -> np.ndarray:
    """What is lost in each resample where both have a value."""
    import numpy as np

    if mine is None or theirs is None:
        return np.zeros(0)
    drops: np.ndarray = sign * (theirs - mine)
    found: np.ndarray = drops[np.isfinite(drops)]
    return found


def _agreement(variant: Evaluation, baseline: Evaluation) -> float | None:
    """The share of samples whose largest score is the same."""
    mine, theirs = variant.array("predicted"), baseline.array("predicted")
    if mine is None or theirs is None or not len(mine):
        return None
    return float((mine == theirs).mean())


def _class_changes(
    label: np.ndarray | None, mine: np.ndarray, theirs: np.ndarray
) -> tuple[ClassChange, ...]:
    """The classes that lost or gained most samples, the worst loss first."""
    import numpy as np

    if label is None:
        return ()
    count = int(label.max(initial=0)) + 1
    sizes, lost, gained, now, before = (
        np.bincount(label[chosen], minlength=count)
        for chosen in (np.ones(len(label), bool), theirs & ~mine, mine & ~theirs, mine, theirs)
    )
    order = np.lexsort((-lost, -np.abs(lost - gained)))
    changed = [int(each) for each in order[:_CLASSES_SHOWN] if lost[each] or gained[each]]
    return tuple(
        ClassChange(
            label=each,
            samples=int(sizes[each]),
            value=float(now[each] / sizes[each]),
            baseline=float(before[each] / sizes[each]),
            regressed=int(lost[each]),
            improved=int(gained[each]),
        )
        for each in sorted(changed, key=lambda each: gained[each] - lost[each])
    )


def output_error(variant: Evaluation, baseline: Evaluation) -> OutputError:
    """How far the outputs lie apart, over all values kept; outputs are paired by position.

    Signal to noise is 10·log10(Σ baseline² / Σ (baseline - variant)²).
    """
    pairs = list(zip(variant.outputs, baseline.outputs, strict=False))
    same_count = len(variant.outputs) == len(baseline.outputs)
    constant = [mine.constant and not theirs.constant for mine, theirs in pairs]
    facts = {
        "finite": variant.finite,
        "baseline_finite": baseline.finite,
        "constant": any(constant) or _all_constant(variant),
        "baseline_constant": _all_constant(baseline),
    }
    stored = [(a, b) for a, b in pairs if a.file is not None and b.file is not None]
    loaded = [(variant.rows(mine), baseline.rows(theirs)) for mine, theirs in stored]
    comparable = same_count and loaded and all(a.shape[1:] == b.shape[1:] for a, b in loaded)
    if not comparable or not (variant.finite and baseline.finite):
        return OutputError(**facts)
    sums = _Sums()
    for mine, theirs in loaded:
        for a, b in _chunks(mine, theirs):
            sums.add(a, b)
    return OutputError(**facts, **sums.figures(), samples=min(variant.stored, baseline.stored))


def _all_constant(evaluation: Evaluation) -> bool:
    return bool(evaluation.outputs) and all(output.constant for output in evaluation.outputs)


def _chunks(mine: np.ndarray, theirs: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Matching rows as float64, few enough at a time that memory does not grow with the set."""
    import numpy as np

    count = min(len(mine), len(theirs))
    step = max(1, _CHUNK_BYTES // max(1, 8 * math.prod(mine.shape[1:])))
    for start in range(0, count, step):
        rows = slice(start, min(start + step, count))
        yield np.asarray(mine[rows], np.float64), np.asarray(theirs[rows], np.float64)


class _Sums:
    """Sums over pairs of values, for figures that need only one pass."""

    def __init__(self) -> None:
        self._signal = self._noise = self._power = self._dot = self._absolute = self._largest = 0.0
        self._count = 0

    def add(self, mine: np.ndarray, theirs: np.ndarray) -> None:
        import numpy as np

        difference = np.abs(mine - theirs)
        self._signal += float(np.sum(theirs * theirs))
        self._power += float(np.sum(mine * mine))
        self._dot += float(np.sum(mine * theirs))
        self._noise += float(np.sum(difference * difference))
        self._absolute += float(difference.sum())
        self._largest = max(self._largest, float(difference.max(initial=0.0)))
        self._count += difference.size

    def figures(self) -> dict[str, float | None]:
        lengths = math.sqrt(self._signal) * math.sqrt(self._power)
        measurable = self._signal > 0 and self._noise > 0
        return {
            "sqnr_db": 10 * math.log10(self._signal / self._noise) if measurable else None,
            "cosine": min(1.0, self._dot / lengths) if lengths > 0 else None,
            "max_abs": self._largest,
            "mean_abs": self._absolute / self._count if self._count else None,
        }
