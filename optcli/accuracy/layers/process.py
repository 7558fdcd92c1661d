"""What the comparing process does: samples through both networks, rows with advice, worst first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli import data
from optcli.accuracy.layers import onnx, openvino, torch
from optcli.accuracy.layers.measured import MeasuredLayers
from optcli.artifact import Artifact, Format
from optcli.data import DataSettings
from optcli.models.formats.exported import bring_operators
from optcli.results.outcomes import LayerError, Layers
from optcli.sample import cycled
from optcli.settings import TensorSpec, batch_range
from optcli.workers import Channel

if TYPE_CHECKING:
    import numpy as np

    Feed = dict[str, np.ndarray]

_COMPARABLE = {
    Format.ONNX: (Format.ONNX,),
    Format.OPENVINO: (Format.OPENVINO,),
    Format.TORCH: (Format.TORCH,),
    Format.EXPORTED: (Format.EXPORTED, Format.TORCH),
}
# Passes with an option that leaves layers in floating point by name.
_IGNORES = {
    "quantize_nncf": "ignored_names",
    "quantize_onnxruntime": "ignored_names",
    "quantize_dynamic": "ignored_names",
    "quantize_pt2e": "ignored_modules",
    "weights_only": "ignored_names",
    "convert_precision": "ignored_names",
}
_CLIPS = 1e-3
FULL = ("fp32", "fp64")
_PARALLEL = 0.98
_SCALED = 0.2
_CHANNEL_APART_DB = 12.0


def incomparable(baseline: Artifact, child: Artifact) -> str | None:
    """Why two artifacts cannot be compared layer by layer; None: they can."""
    if child.format not in _COMPARABLE:
        return (
            f"{child.format} keeps no layers that could be looked into:"
            " compare the artifact that it was made from"
        )
    if baseline.format not in _COMPARABLE[child.format]:
        return f"the layers of {baseline.format} and {child.format} cannot be matched"
    return None


def advice_for(row: LayerError, made_by: Mapping[str, Any], precision: str = "int8") -> str:
    """One action for a row of a child of this precision; "" where the layer adds nothing."""
    if row.finite and row.own_db is None:
        return ""
    name, options = made_by.get("step", ""), made_by.get("options") or {}
    off = row.factor is not None and abs(row.factor - 1) > _SCALED
    # Rounding does not move all values by one and the same factor.
    if off and row.cosine is not None and row.cosine > _PARALLEL:
        again = f"build it again with {name}" if name else "quantize this layer again"
        return f"its values are {row.factor:.2f} times what they should be, a scale is wrong: {again}"
    if row.clipped is not None and row.clipped > _CLIPS:
        return _wider(row, name, options)
    if row.kind == "weight" and _per_channel_helps(row, name, options):
        return f"{{{name}: {{per_channel: true}}}}: channel {row.channel} drowns in the scale of others"
    if precision in FULL:
        return f"leave {row.node or row.tensor} as it was"
    option = _IGNORES.get(name)
    if option is None or not row.node:
        return f"leave {row.node or row.tensor} in floating point"
    return f"{{{name}: {{{option}: [{', '.join(_to_leave(row, name))}]}}}}"


def _wider(row: LayerError, name: str, options: Mapping[str, Any]) -> str:
    clipped = f"{100 * (row.clipped or 0):.1f} % of its values are clipped"
    if name == "quantize_onnxruntime" and options.get("method", "minmax") != "minmax":
        return f"{{{name}: {{method: minmax}}}}: {clipped}"
    if name:
        return f"more calibration samples, nearer to the evaluation set: {clipped}"
    return f"quantize again with samples nearer to these: {clipped}"


def _per_channel_helps(row: LayerError, name: str, options: Mapping[str, Any]) -> bool:
    apart = (row.own_db or 0.0) - (row.channel_db if row.channel_db is not None else 0.0)
    return (
        name in ("quantize_onnxruntime", "quantize_dynamic")
        and options.get("per_channel") is False
        and apart > _CHANNEL_APART_DB
    )


def _to_leave(row: LayerError, name: str) -> list[str]:
    """The layers without which a tensor is not quantized: NNCF quantizes it for those that read it.

    ONNX Runtime does so for either side. A layer with weights may err by these as well.
    """
    if not row.readers or name not in ("quantize_nncf", "quantize_onnxruntime"):
        return [row.node]
    weighs = any(part in row.operator for part in ("Conv", "Gemm", "MatMul"))
    first = [row.node] if weighs or name == "quantize_onnxruntime" else []
    return list(dict.fromkeys([*first, *row.readers]))


SAMPLES = 8


@dataclass(frozen=True)
class LayersRequest:
    """What to compare on which samples.

    `inputs` are the recipe's; paths in `data` are relative to `folder`. `made_by` is the step that made
    the child, `{"step": pass, "options": {...}}`, as the store keeps it: the advice names its options.
    """

    baseline: Artifact
    child: Artifact
    inputs: tuple[TensorSpec, ...]
    data: DataSettings
    folder: Path
    samples: int = SAMPLES
    threads: int = 1
    made_by: dict[str, Any] = field(default_factory=dict)


def serve(request: LayersRequest, channel: Channel) -> Layers:
    """Compare two artifacts layer by layer: rows with advice, worst first."""
    samples = data.open(request.data, request.folder, request.inputs)
    # The smallest batches that the model takes: they bound what is in memory.
    size = batch_range(request.inputs).min
    count = max(size, min(request.samples, len(samples)))
    feeds = [dict(cycled(samples, size, start).inputs) for start in range(0, count, size)]
    measured = _measured(request, feeds)
    rows = tuple(
        row.model_copy(update={"advice": advice_for(row, request.made_by, request.child.precision)})
        for row in sorted(measured.rows, key=lambda row: row.rank)
    )
    return Layers(rows=rows, compared=measured.compared, samples=count, reason=measured.reason)


def _measured(request: LayersRequest, feeds: Sequence[Feed]) -> MeasuredLayers:
    baseline, child = request.baseline, request.child
    inputs, threads = request.inputs, request.threads
    for artifact in (baseline, child):
        bring_operators(artifact.facts.get("imports", ()))
    if child.format == Format.ONNX:
        return onnx.compare(baseline, child, feeds, threads)
    if child.format == Format.OPENVINO:
        return openvino.compare(baseline, child, feeds, threads)
    if baseline.format == child.format == Format.TORCH:
        return torch.compare(baseline, child, feeds, inputs)
    return torch.compare_exported(baseline, child, feeds, inputs)
