"""The outputs of a model as facts of its artifact, which what is made of it inherits."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from optcli.artifact import OUTPUT_TENSORS
from optcli.outputs.describing import MOST_ROWS, FileOutput
from optcli.outputs.guessing import Probe

if TYPE_CHECKING:
    import numpy as np

_DETECTIONS = 6  # x1, y1, x2, y2, score and class
_FRACTIONS = 2.0  # boxes in fractions of the image reach a little beyond it


class _Tensor(BaseModel):
    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None
    probe: tuple[float, bool] | None = None


def facts_of(
    outputs: Mapping[str, np.ndarray], batch_size: int, whole: Collection[str] = ()
) -> dict[str, Any]:
    """The fact of a model that gave these outputs for a batch; `whole` have no dimension for it."""
    tensors = []
    for number, (name, array) in enumerate(outputs.items()):
        shape: list[int | None] = list(array.shape)
        if shape and shape[0] == batch_size and name not in whole:
            shape[0] = None
        seen = probe_of(array) if number == 0 else None
        probe = {"probe": [seen.largest, seen.rows]} if seen is not None else {}
        tensors.append({"name": name, "dtype": str(array.dtype), "shape": shape, **probe})
    return {OUTPUT_TENSORS: tensors}


def of_facts(facts: Mapping[str, Any]) -> tuple[tuple[FileOutput, ...], Probe | None]:
    """The outputs that facts speak of, and what the first one held, as far as they say it.

    Facts of an artifact from elsewhere may be anything: where they are of another form there are none.
    """
    try:
        tensors = [_Tensor.model_validate(each) for each in facts.get(OUTPUT_TENSORS) or ()]
    except (ValidationError, TypeError):
        return (), None
    probe = tensors[0].probe if tensors else None
    declared = tuple(FileOutput(each.name, each.shape, each.dtype) for each in tensors)
    return declared, None if probe is None else Probe(*probe)


def probe_of(rows: np.ndarray) -> Probe | None:
    """What an output `[batch, rows, columns]` holds; None for one of another form."""
    import numpy as np

    if rows.ndim != 3 or not rows.size or rows.dtype.kind != "f":
        return None
    largest = float(rows[..., :2].max())
    if not math.isfinite(largest):
        return None
    ordered = rows.shape[-1] == _DETECTIONS and bool((rows[..., 2:4] >= rows[..., :2]).all())
    classes = rows[..., -1]
    whole = bool((classes == np.round(classes)).all()) and float(classes.min()) >= 0
    return Probe(largest, ordered and whole)


def decoding_options_of(outputs: Sequence[np.ndarray]) -> str:
    """How to read boxes `[batch, n, 4]` and scores `[batch, n, classes]`, by what noise led to.

    The options of `postprocess: {boxes: ...}`; empty for other outputs, and where scores are logits.
    """
    import numpy as np

    form = [each.shape[:2] for each in outputs if each.ndim == 3 and np.isfinite(each).all()]
    if len(outputs) != 2 or len(form) != 2 or form[0] != form[1]:
        return ""
    boxes, scores = sorted(outputs, key=lambda each: each.shape[-1] != 4)
    if boxes.shape[-1] != 4 or scores.min() < 0 or scores.max() > 1:
        return ""
    options = [] if (boxes[..., 2:] >= boxes[..., :2]).all() else ["format: cxcywh"]
    options += ["normalized: true"] if np.abs(boxes).max() <= _FRACTIONS else []
    if scores.shape[-1] > 1 and np.allclose(scores.sum(axis=-1), 1, atol=1e-3):
        mean = scores.mean(axis=(0, 1))  # most boxes of noise show the background
        options.append("background: first" if mean[0] > mean[-1] else "background: last")
    options += ["nms: 0.65"] if boxes.shape[1] > MOST_ROWS else []
    return ", ".join(options)
