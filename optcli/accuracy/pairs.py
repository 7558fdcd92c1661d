"""A variant beside the baseline: the same samples, one by one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from optcli.accuracy.evaluation import Evaluation
from optcli.errors import InputError
from optcli.results import Accuracy, Estimate, OutputError
from optcli.statistics import drop_interval

if TYPE_CHECKING:
    import numpy as np

_CHUNK_BYTES = 16 * 1024**2


def compare(variant: Evaluation, baseline: Evaluation) -> Accuracy:
    """Accuracy of a variant against the baseline (which may be compared with itself).

    The drop's 95 % interval is Tango's score interval on the samples whose correctness differs.
    Raises `InputError` where the two did not see the same samples in the same order.
    """
    import numpy as np

    if not np.array_equal(variant.ids(), baseline.ids()):
        raise InputError(
            "the variant and the baseline were evaluated on different samples",
            place=str(variant.folder),
            hint="evaluate both again: optcli build --remeasure",
        )
    error = output_error(variant, baseline)
    if variant.metric is None or variant.metric != baseline.metric:
        return Accuracy(
            metric=None, value=None, baseline=None, samples=variant.samples, output_error=error
        )
    mine, theirs = variant.correct(), baseline.correct()
    regressed, improved = int((theirs & ~mine).sum()), int((mine & ~theirs).sum())
    low, high = drop_interval(regressed, improved, variant.samples)
    drop = (regressed - improved) / variant.samples
    return Accuracy(
        metric=variant.metric,
        value=variant.value,
        baseline=baseline.value,
        samples=variant.samples,
        drop=Estimate(value=drop, low=low, high=high),
        regressed=regressed,
        improved=improved,
        output_error=error,
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
