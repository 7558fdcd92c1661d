"""How far the values of outputs lie apart: over all of them, by output, and by sample."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from optcli.results.outcomes import OutputDistance

if TYPE_CHECKING:
    import numpy as np

_CHUNK_BYTES = 16 * 1024**2
# A sample with noise of a tenth of its signal's power has another answer, whatever the rest have.
FAR_DB = 10.0


def output_distances(outputs: Sequence[tuple[str, np.ndarray, np.ndarray]]) -> dict[str, Any]:
    """The figures of an `OutputError` from the rows of outputs: name, variant's, baseline's.

    `signal` beside them is Σ baseline² over all.
    """
    import numpy as np

    count = min(min(len(candidate), len(reference)) for _, candidate, reference in outputs)
    noise, signal = np.zeros(count), np.zeros(count)
    whole, distances = _Sums(), []
    for name, candidate, reference in outputs:
        sums = _Sums()
        whole_numbers = candidate.dtype.kind in "iub" and reference.dtype.kind in "iub"
        for start, a, b in _chunks(candidate[:count], reference[:count]):
            whole.add(a, b)
            sums.add(a, b)
            rows = slice(start, start + len(a))
            if whole_numbers:  # the distance of two class numbers says nothing
                a, b = (a != b).astype(np.float64), np.ones_like(b)
                noise[rows] += _by_row(a)
                signal[rows] += _by_row(b)
                sums.differing += float(a.sum())
            else:
                noise[rows] += _by_row(a - b)
                signal[rows] += _by_row(b)
        distances.append(sums.distance(name, whole_numbers))
    far_off_count = int(np.count_nonzero(noise * 10 ** (FAR_DB / 10) > signal))
    return {
        **whole.figures(),
        "signal": whole.signal,
        "samples": count,
        "far_samples": far_off_count,
        "worst": min(distances, key=_order),
    }


def _order(distance: OutputDistance) -> float:
    """Farthest first: what the baseline has as zero, and the variant not, is infinitely far."""
    if distance.sqnr_db is not None:
        return distance.sqnr_db
    return -math.inf if distance.max_abs > 0 else math.inf


def _by_row(values: np.ndarray) -> np.ndarray:
    import numpy as np

    sums: np.ndarray = np.square(values).reshape(len(values), -1).sum(axis=1)
    return sums


def _chunks(
    candidate: np.ndarray, reference: np.ndarray
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Matching rows as float64, few enough at a time that memory does not grow with the set."""
    import numpy as np

    step = max(1, _CHUNK_BYTES // max(1, 8 * math.prod(candidate.shape[1:])))
    for start in range(0, len(candidate), step):
        rows = slice(start, min(start + step, len(candidate)))
        yield start, np.asarray(candidate[rows], np.float64), np.asarray(reference[rows], np.float64)


class _Sums:
    """Sums over pairs of values, for figures that need only one pass."""

    def __init__(self) -> None:
        self.signal = self.differing = 0.0
        self._noise = self._power = self._dot = self._absolute = self._largest = 0.0
        self._count = 0

    def add(self, candidate: np.ndarray, reference: np.ndarray) -> None:
        import numpy as np

        difference = np.abs(candidate - reference)
        self.signal += float(np.sum(reference * reference))
        self._power += float(np.sum(candidate * candidate))
        self._dot += float(np.sum(candidate * reference))
        self._noise += float(np.sum(difference * difference))
        self._absolute += float(difference.sum())
        self._largest = max(self._largest, float(difference.max(initial=0.0)))
        self._count += difference.size

    def figures(self) -> dict[str, float | None]:
        lengths = math.sqrt(self.signal) * math.sqrt(self._power)
        return {
            "sqnr_db": _decibel(self.signal, self._noise),
            "cosine": min(1.0, self._dot / lengths) if lengths > 0 else None,
            "max_abs": self._largest,
            "mean_abs": self._absolute / self._count if self._count else None,
        }

    def distance(self, name: str, whole_numbers: bool) -> OutputDistance:
        signal, noise = (
            (float(self._count), self.differing) if whole_numbers else (self.signal, self._noise)
        )
        return OutputDistance(output=name, sqnr_db=_decibel(signal, noise), max_abs=self._largest)


def _decibel(signal: float, noise: float) -> float | None:
    return 10 * math.log10(signal / noise) if signal > 0 and noise > 0 else None
