"""Whether what was written computes what was trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from optcli.artifact import Format
from optcli.errors import StepError
from optcli.models.formats import exported as exported_format
from optcli.models.formats import onnx as onnx_format
from optcli.models.formats import openvino as openvino_format

if TYPE_CHECKING:
    import numpy as np

    Arrays = dict[str, np.ndarray]

# Where fake quantizers round to one integer a runtime may round to the next, at every layer.
_TOLERANCE = 0.2


def require_agreement(format: Format, folder: Path, feed: Arrays, wanted: Arrays) -> float:
    """The largest difference to the trained network's outputs, as a fraction of the largest value.

    `wanted` are the outputs by name, in order, for `feed`. Raises `StepError` above the tolerance.
    """
    import numpy as np

    outputs = _outputs(format, folder, feed)
    worst = 0.0
    for (name, right), values in zip(wanted.items(), outputs, strict=True):
        if right.shape != values.shape:
            raise StepError(
                f"the output {name!r} has the shape {list(values.shape)}, the trained network's has "
                f"{list(right.shape)}",
                hint="the exporter is wrong for this network: set `to:` to another format",
            )
        largest = float(np.abs(right).max(initial=0.0)) or 1.0
        error = float(np.abs(right - values).max(initial=0.0)) / largest
        if not error <= _TOLERANCE:
            raise StepError(
                f"the artifact does not compute what was trained: the output {name!r} differs by "
                f"{error:.2g} of its largest value, allowed are {_TOLERANCE:g}",
                hint="the exporter is wrong for this network: set `to:` to another format",
            )
        worst = max(worst, error)
    return worst


def _outputs(format: Format, folder: Path, feed: Arrays) -> list[np.ndarray]:
    if format == Format.ONNX:
        return list(onnx_format.session(folder / onnx_format.FILE).run(None, feed))
    if format == Format.OPENVINO:
        compiled = openvino_format.core().compile_model(
            openvino_format.open(folder), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
        )
        return [compiled(feed)[port] for port in compiled.outputs]
    import torch

    program = exported_format.open(folder)
    with torch.no_grad():
        values = program.module()(*(torch.from_numpy(array) for array in feed.values()))
    return [v.numpy() for v in ((values,) if isinstance(values, torch.Tensor) else values)]
