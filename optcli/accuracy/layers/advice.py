"""What to try about a layer: one action, in the words of the pass that made the artifact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optcli.artifact import Artifact, Format
from optcli.results.layers import LayerError

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


def of(row: LayerError, made_by: Mapping[str, Any], precision: str = "int8") -> str:
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
