"""One call of ONNX Runtime's static quantizer, with ranges that are known already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli.errors import StepError, raised_as
from optcli.formats import onnx as onnx_format
from optcli.onnx_graphs.graph import read
from optcli.passes._quantization import weight_channels
from optcli.passes._quantization.activation_ranges import Range

if TYPE_CHECKING:
    from onnx import ModelProto


@dataclass(frozen=True)
class Scope:
    """What to quantize: nodes of the types; where `names` is not empty no others; never `ignored`."""

    types: Collection[str]
    names: Collection[str]
    ignored: Collection[str]


@dataclass(frozen=True)
class Grids:
    """Integers for activations and weights (`int8` or `uint8`), and how they lie.

    `for_tensorrt`: symmetric, before the operators of the scope and not behind them, biases and the
    file's weights in floating point. `qdq` false: integer operators instead of pairs.
    """

    activations: str
    weights: str
    reduce_range: bool
    per_channel: bool
    qdq: bool = True
    for_tensorrt: bool = False


def quantize(
    prepared: Path, out: Path, ranges: Mapping[str, Range], scope: Scope, grids: Grids, work: Path
) -> None:
    """Quantize the model in the folder `prepared` and write it to the folder `out`.

    `ranges` has the smallest and largest value of activations by name, `work` is for files that may be
    thrown away. Raises `StepError`.
    """
    import numpy as np
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, calibrate
    from onnxruntime.quantization.quantize import quantize_static

    data = calibrate.TensorsData(
        CalibrationMethod.MinMax,
        {
            name: calibrate.TensorData(lowest=np.float32(low), highest=np.float32(high))
            for name, (low, high) in ranges.items()
        },
    )
    calibrate.save_tensors_data(data, work / "ranges.json")
    kinds = {"uint8": QuantType.QUInt8, "int8": QuantType.QInt8}
    hint = "keep the operators that it fails on in floating point, with ignored_types"
    failing = raised_as(StepError, "ONNX Runtime's quantizer failed", hint=hint)
    with failing, weight_channels.at_once():
        quantize_static(
            prepared / onnx_format.FILE,
            out / onnx_format.FILE,
            None,
            quant_format=QuantFormat.QDQ if grids.qdq else QuantFormat.QOperator,
            op_types_to_quantize=sorted(scope.types),
            per_channel=grids.per_channel,
            reduce_range=grids.reduce_range,
            activation_type=kinds[grids.activations],
            weight_type=kinds[grids.weights],
            nodes_to_quantize=sorted(scope.names),
            nodes_to_exclude=sorted(scope.ignored),
            use_external_data_format=onnx_format.bytes_in(prepared) > onnx_format.ONE_FILE_BYTES,
            calibration_cache_path=work / "ranges.json",
            extra_options=_further(prepared, scope, grids),
        )


def replaced_ranges(model: ModelProto, tensors: Collection[str], scope: Scope) -> dict[str, str]:
    """Of some tensors, those in place of whose ranges the quantizer takes those of others, by name.

    It does so for what Relu or Clip alone reads (`adjust_tensor_ranges` of ONNX Runtime): the two
    become one operation, and its output's range counts.
    """
    nodes = model.graph.node
    uses = Counter(name for node in nodes for name in node.input)
    uses.update(output.name for output in model.graph.output)
    replaced = {
        node.input[0]: node.output[0]
        for node in nodes
        if node.op_type in {"Relu", "Clip"} & {*scope.types}
        and node.name not in scope.ignored
        and (not scope.names or node.name in scope.names)
        and uses[node.input[0]] == 1
        and {node.input[0], node.output[0]} <= {*tensors}
    }
    behind = {*replaced.values()}
    return {name: by for name, by in replaced.items() if name not in behind}


def _further(prepared: Path, scope: Scope, grids: Grids) -> dict[str, Any]:
    overrides = _one_scale(prepared, grids) if grids.per_channel and grids.qdq else {}
    further: dict[str, Any] = {"TensorQuantOverrides": overrides}
    if grids.for_tensorrt:
        further |= {
            "ActivationSymmetric": True,
            "AddQDQPairToWeight": True,
            "QuantizeBias": False,
            "OpTypesToExcludeOutputQuantization": sorted(scope.types),
        }
    return further


def _one_scale(prepared: Path, grids: Grids) -> dict[str, list[dict[str, Any]]]:
    """Overrides that give weights of grouped ConvTranspose one scale: ONNX Runtime errs with more."""
    override = {"symmetric": True, "reduce_range": grids.reduce_range}
    return {
        str(weight.name): [override]
        for node in read(onnx_format.outline(prepared)).graph
        if node.op_type == "ConvTranspose" and node.attributes.get_int("group", 1) > 1
        if (weight := node.inputs[1]) is not None
    }
