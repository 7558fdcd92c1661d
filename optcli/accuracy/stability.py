"""Whether a sample's outputs differ from run to run, or with the other samples in its batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from optcli.results.outcomes import Stability
from optcli.sample import Batch, SampleSet, collate, cycled

if TYPE_CHECKING:
    import numpy as np

    Run = Callable[[Batch], Mapping[str, np.ndarray]]

_SAMPLES = 8


def look(run: Run, samples: SampleSet, largest: int, fewest: int) -> Stability:
    """Run a few samples twice as one batch, and one by one where the model takes one.

    `largest` and `fewest` are batch sizes that it takes. Padding and batching bugs show here, and
    runtimes that are not deterministic.
    """
    count = max(fewest, min(_SAMPLES, largest, len(samples)))
    batch = cycled(samples, count)
    first = {name: array.copy() for name, array in run(batch).items()}
    repeat = max((_apart(array, first[name]) for name, array in run(batch).items()), default=0.0)
    alone = None
    if fewest == 1 and count > 1:
        alone = 0.0
        for index in range(count):
            for name, array in run(collate([samples[index]])).items():
                if array.ndim and len(array) == 1 and len(first[name]) == count:
                    alone = max(alone, _apart(array[0], first[name][index], first[name]))
    return Stability(repeat_error=repeat, batch_error=alone, samples=count)


def _apart(mine: np.ndarray, theirs: np.ndarray, whole: np.ndarray | None = None) -> float:
    """Largest difference over the largest value of `whole` (default: `theirs`); 1 for other shapes."""
    import numpy as np

    if mine.shape != theirs.shape:
        return 1.0
    if mine.dtype.kind != "f":
        return float(not np.array_equal(mine, theirs))
    a, b = mine.astype(np.float64), theirs.astype(np.float64)
    largest = np.abs(theirs if whole is None else whole).max(initial=0.0)
    # NaN on both sides is the same; what is not finite is a verdict of its own.
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        apart = np.abs(np.where(same, 0.0, a - b)).max(initial=0.0)
    if not np.isfinite(apart):
        return 1.0
    return float(apart / largest) if largest > 0 and np.isfinite(largest) else float(apart > 0)
