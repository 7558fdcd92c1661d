"""How outputs differ from the baseline's: their interface, their values, their scores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from optcli.accuracy import detections
from optcli.accuracy.evaluation import Evaluation, StoredOutput
from optcli.accuracy.parts import CONFIDENT
from optcli.errors import counted
from optcli.results.outcomes import InterfaceChange, OutputDistance, ScoreChange

if TYPE_CHECKING:
    import numpy as np

_KINDS = {"i": "whole numbers", "u": "whole numbers", "b": "truth values", "c": "complex numbers"}


def paired(
    candidate: Sequence[StoredOutput], reference: Sequence[StoredOutput]
) -> list[tuple[StoredOutput, StoredOutput]]:
    """Outputs that belong together: by name where the names are the same, else by position."""
    names = {output.name: output for output in candidate}
    if set(names) == {output.name for output in reference}:
        return [(names[output.name], output) for output in reference]
    return list(zip(candidate, reference, strict=False))


def interface_changes(
    candidate: Sequence[StoredOutput], reference: Sequence[StoredOutput]
) -> tuple[InterfaceChange, ...]:
    """How the outputs of a variant differ from the baseline's; empty where they do not."""
    return (*_names(candidate, reference), *_values(candidate, reference))


def change_text(change: InterfaceChange) -> str:
    """One change in words."""
    name, before, after = change.output, change.before, change.after
    return {
        "added": f"output {name!r} is new: the baseline has {before}, this {after}",
        "removed": f"output {name!r} is missing: the baseline has {before}, this {after}",
        "renamed": f"output {before!r} is called {after!r} here",
        "order": f"the outputs stand in another order: {before} is {after} here",
        "shape": f"output {name!r} has the shape {before} for a sample, here {after}",
        "dtype": f"output {name!r} is {before}, here {after}",
    }[change.what]


def _names(
    candidate: Sequence[StoredOutput], reference: Sequence[StoredOutput]
) -> Iterator[InterfaceChange]:
    new_names = [output.name for output in candidate]
    old_names = [output.name for output in reference]
    if len(new_names) != len(old_names):
        sizes = (counted(len(each), "output") for each in (old_names, new_names))
        counts = {**dict(zip(("before", "after"), sizes, strict=True)), "comparable": False}
        names = {"added": [n for n in new_names if n not in old_names] or new_names[len(old_names) :]}
        names["removed"] = [n for n in old_names if n not in new_names] or old_names[len(new_names) :]
        for what, of in names.items():
            for name in of:
                yield InterfaceChange.model_validate({"what": what, "output": name, **counts})
    elif set(new_names) == set(old_names) and new_names != old_names:
        order = {"before": ", ".join(old_names), "after": ", ".join(new_names)}
        yield InterfaceChange(what="order", output=old_names[0], **order, comparable=True)
    else:
        for new, old in zip(new_names, old_names, strict=True):
            if new != old:
                yield InterfaceChange(
                    what="renamed", output=old, before=old, after=new, comparable=True
                )


def _values(
    candidate: Sequence[StoredOutput], reference: Sequence[StoredOutput]
) -> Iterator[InterfaceChange]:
    for own, expected in paired(candidate, reference):
        place: dict[str, Any] = {"output": expected.name, "comparable": False}
        if own.shape != expected.shape:
            shapes = {"before": _shape(expected.shape), "after": _shape(own.shape)}
            yield InterfaceChange(what="shape", **shapes, **place)
        if _kind(own.dtype) != _kind(expected.dtype):
            yield InterfaceChange(what="dtype", before=expected.dtype, after=own.dtype, **place)


def _shape(shape: tuple[int, ...] | None) -> str:
    return "that varies" if shape is None else f"[{', '.join(str(size) for size in shape)}]"


def _kind(dtype: str) -> str:
    """Which kind of numbers; how many bits they have is no other interface."""
    import numpy as np

    return _KINDS.get(np.dtype(dtype).kind, "floating point")


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


# A classifier's answer that is more likely than all others together.
_LIKELY = 0.5
# Of fewer confident scores one more or less is a large share.
_FEWEST = 20
# Of the detections, or answers, that a fixed threshold lets through.
_MOST_LOST = 0.05


def score_change(variant: Evaluation, baseline: Evaluation, score: float) -> ScoreChange | None:
    """The scores of detections, or the confidences of a classifier's answers, on the same samples.

    `score` is the smallest one that a recipe asks for. None where there are no such scores.
    """
    both = detections.of_both(variant, baseline)
    if both is not None:
        candidate, reference = (each[detections.NAMES.index("found_score")] for each in both)
        return _change(candidate, reference, "detections", max(score, CONFIDENT))
    own, other = variant.array("confidence"), baseline.array("confidence")
    return None if own is None or other is None else _change(own, other, "answers", _LIKELY)


def _change(candidate: np.ndarray, reference: np.ndarray, of: str, threshold: float) -> ScoreChange:
    import numpy as np

    count, before = (int((scores >= threshold).sum()) for scores in (candidate, reference))
    equal = float(np.sort(candidate)[-before]) if 0 < before <= len(candidate) else None
    record = {"of": of, "threshold": threshold, "count": count, "baseline": before, "equal": equal}
    return ScoreChange.model_validate(record)


def score_advice(change: ScoreChange) -> str | None:
    """What a fixed threshold would lose or let through beside the baseline's; None for little."""
    if change.baseline < _FEWEST or abs(change.count / change.baseline - 1) <= _MOST_LOST:
        return None
    share = abs(change.count / change.baseline - 1)
    than = f"{share:.0%} {'fewer' if change.count < change.baseline else 'more'}"
    as_many = "" if change.equal is None else f"; {change.equal:.2g} would let as many through"
    return (
        f"scores moved: a fixed threshold of {change.threshold:g} lets {change.count} {change.of}"
        f" through where the baseline has {change.baseline}, {than}{as_many}"
    )
