"""One call of ONNX Runtime's static quantizer, with ranges that are known already.

Before it, `merge_linear_layers` joins a product with weights and the bias behind it in one operator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli.errors import StepError, raised_as
from optcli.models.formats import onnx as onnx_format
from optcli.models.onnx_graphs.graph import add_initializer, array, constant, maker, read, written
from optcli.passes._quantization.calibration import Range

if TYPE_CHECKING:
    from onnx import ModelProto
    from onnx_ir import Graph, Node, Value


@dataclass(frozen=True)
class Scope:
    """What to quantize: nodes of the types; where `names` is not empty no others; never `ignored`."""

    types: Collection[str]
    names: Collection[str]
    ignored: Collection[str]


@dataclass(frozen=True)
class Grids:
    """Integers for activations (`int8`, `uint8` or `uint16`) and weights, and how they lie.

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
    kinds = {"uint8": QuantType.QUInt8, "int8": QuantType.QInt8, "uint16": QuantType.QUInt16}
    hint = "keep the operators that it fails on in floating point, with ignored_types"
    failing = raised_as(StepError, "ONNX Runtime's quantizer failed", hint=hint)
    with failing:
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


def merge_linear_layers(model: ModelProto, untouched: Collection[str] = ()) -> ModelProto:
    """The model with each `Add(MatMul(x, weights), bias)` as `Gemm`, between two `Reshape` if need be.

    It computes the same. A quantizer that keeps additions in floating point leaves the bias behind the
    integers; in `Gemm` it is one of their sums. Exporters write `Gemm` themselves where the batch is
    fixed. The `Gemm` has the name of the product, and what the layer gives keeps its name. `untouched`
    are names of nodes that stay; so does a layer of whose input more than one size is unknown.
    """
    model_ir = read(model)
    graph = model_ir.graph
    additions = [node for node in graph if node.op_type == "Add" and node.name not in untouched]
    changed = [node for node in additions if _merge(graph, node)]
    return written(model_ir) if changed else model


def _merge(graph: Graph, add: Node) -> bool:
    """Put one `Gemm` in the place of an addition and the product before it, where they are a layer."""
    layer = _layer(add)
    sizes = None if layer is None else _sizes(layer[0].inputs[0])
    given = add.outputs[0]
    if layer is None or sizes is None or given.is_graph_output():
        return False
    import numpy as np
    import onnx_ir

    product, weights, bias = layer
    name, rows, width = str(product.name), product.inputs[0], sizes[-1]
    numbers = constant(bias)
    assert numbers is not None
    out = numbers.shape.numpy()[0]
    flat = len(sizes) == 2
    nodes: list[Node] = []

    def made(operator: str, inputs: list[Value | None], ending: str) -> Value:
        node = onnx_ir.node(operator, inputs, name=name + ending)
        nodes.append(node)
        node.outputs[0].name = f"{given.name}/linear{ending}"
        node.outputs[0].dtype = numbers.dtype
        return node.outputs[0]

    def shaped(value: Value | None, shape: list[int], ending: str) -> Value:
        target = add_initializer(graph, f"{given.name}/linear{ending}_shape", np.array(shape, np.int64))
        return made("Reshape", [value, target], ending)

    result = made("Gemm", [rows if flat else shaped(rows, [-1, width], "_rows"), weights, bias], "")
    if not flat:
        for value, columns in ((nodes[0].outputs[0], width), (result, out)):
            value.shape = onnx_ir.Shape([None, columns])
        result = shaped(result, [*sizes[:-1], out], "_whole")
    result.shape = given.shape
    graph.insert_before(add, nodes)
    given.replace_all_uses_with(result)
    graph.remove([add, product], safe=True)
    result.name = given.name
    return True


def _layer(add: Node) -> tuple[Node, Value, Value] | None:
    """The product, its weights (two-dimensional) and the bias (one number for each column)."""
    for one, other in (add.inputs, add.inputs[::-1]):
        product, bias = maker(one, "MatMul"), array(other)
        if product is None or bias is None or bias.ndim != 1 or one is None or other is None:
            continue
        weights = product.inputs[1]
        numbers = array(weights)
        if weights is None or numbers is None or numbers.ndim != 2:
            continue
        read_once = len(one.uses()) == 1 and not one.is_graph_output()
        if read_once and bias.shape == numbers.shape[1:] and numbers.dtype == bias.dtype:
            return product, weights, other
    return None


def _sizes(value: Value | None) -> list[int] | None:
    """The sizes of a value, -1 for the one that varies; None where they are not known well enough."""
    if value is None or value.shape is None or len(value.shape) < 2:
        return None
    sizes = [size if isinstance(size, int) else -1 for size in value.shape]
    known = sizes[-1] > 0 and sizes.count(-1) <= 1 and 0 not in sizes
    return sizes if known else None
