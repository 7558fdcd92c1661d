"""Metrics: a table from names to functions that say, sample by sample, what is right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from optcli.errors import InputError, UsageError, did_you_mean

if TYPE_CHECKING:
    import numpy as np

    # Outputs [batch, ...], targets and ids of the samples -> whether each is right, [batch] of bool.
    Metric = Callable[[np.ndarray, Sequence[Any], Sequence[str]], np.ndarray]


def top1(scores: np.ndarray, targets: Sequence[Any], ids: Sequence[str]) -> np.ndarray:
    """Whether the first of the largest scores `[batch, classes]` is the label's."""
    return _top(1, scores, targets, ids)


def top5(scores: np.ndarray, targets: Sequence[Any], ids: Sequence[str]) -> np.ndarray:
    """Whether the label's score is among the five largest of `[batch, classes]`; ties: the first."""
    return _top(5, scores, targets, ids)


_METRICS: dict[str, Metric] = {"top1": top1, "top5": top5}


def metric_names() -> tuple[str, ...]:
    """The names that `accuracy.metric` may have."""
    return tuple(_METRICS)


def require_metric(name: str) -> Metric:
    """The metric of a name. Raises `UsageError` for an unknown one."""
    if name not in _METRICS:
        raise UsageError(f"unknown metric {name!r}", hint=did_you_mean(name, metric_names()))
    return _METRICS[name]


def _top(count: int, scores: np.ndarray, targets: Sequence[Any], ids: Sequence[str]) -> np.ndarray:
    """A row with NaN in it is never right: NaN could stand anywhere in the order."""
    import numpy as np

    scores = _scores(scores, len(ids))
    labels = _labels(targets, ids, scores.shape[1])
    best = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    hit: np.ndarray = (best == labels[:, None]).any(axis=1)
    clean: np.ndarray = hit & ~np.isnan(scores).any(axis=1)
    return clean


def _scores(outputs: np.ndarray, rows: int) -> np.ndarray:
    import numpy as np

    if outputs.ndim > 2 and all(size == 1 for size in outputs.shape[2:]):
        outputs = outputs.reshape(outputs.shape[:2])
    if outputs.ndim != 2 or len(outputs) != rows:
        found = " x ".join(str(size) for size in outputs.shape)
        raise InputError(
            f"the metric wants scores of shape batch x classes, found {found}",
            place="accuracy.output",
            hint="name the output that holds the scores under `accuracy: {output: ...}`",
        )
    return outputs.astype(np.float64)


def _labels(targets: Sequence[Any], ids: Sequence[str], classes: int) -> np.ndarray:
    import numpy as np

    labels = np.empty(len(ids), dtype=np.int64)
    for row, (target, name) in enumerate(zip(targets, ids, strict=True)):
        value = (
            target.item()
            if isinstance(target, np.ndarray | np.generic) and target.size == 1
            else target
        )
        if isinstance(value, bool) or not isinstance(value, int):
            raise InputError(
                f"the metric wants class numbers as labels, found {target!r}",
                place=name,
                hint="give the data whole numbers from 0 as labels, or leave `accuracy:` away",
            )
        if not 0 <= value < classes:
            raise InputError(
                f"label {value} is out of range: the model has {classes} classes, 0 to {classes - 1}",
                place=name,
                hint="the labels must be the class numbers that the model was trained with",
            )
        labels[row] = value
    return labels
