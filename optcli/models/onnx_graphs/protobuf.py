"""Plain facts of an ONNX model, read off its protobuf message: interface, versions, types, shapes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from optcli.errors import InputError, excerpt
from optcli.models.onnx_graphs.operators import DYNAMIC, PAIR, is_static

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, ValueInfoProto

_SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}
FLOATS = frozenset(_SHORT.values())
_FP8 = ("float8e4m3fn", "float8e5m2")

Shape = tuple[int, ...]

# Of initializers whose values may decide a shape.
_FEW = 256

_ONNX = ("", "ai.onnx")
_EXTENSIONS = "the package onnxruntime-extensions"
_OWNERS = {
    "ai.onnx.contrib": _EXTENSIONS,
    "com.microsoft.extensions": _EXTENSIONS,
    "mmdeploy": "MMDeploy",
    "org.openvinotoolkit": "OpenVINO",
    "org.pytorch.aten": "PyTorch",
}


def input_names(model: ModelProto) -> tuple[str, ...]:
    """Names of the inputs, in order; old files list their weights as inputs too, these are left out."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return tuple(value.name for value in model.graph.input if value.name not in weights)


def output_names(model: ModelProto) -> tuple[str, ...]:
    """Names of the outputs, in order."""
    return tuple(value.name for value in model.graph.output)


def input_shapes(model: ModelProto) -> dict[str, tuple[int | str | None, ...]]:
    """Input name to shape: sizes, names of dynamic dimensions, None for sizes that are not given."""
    values = {value.name: value for value in model.graph.input}
    return {name: sizes(values[name]) for name in input_names(model)}


def sizes(value: ValueInfoProto) -> tuple[int | str | None, ...]:
    """The shape of a tensor: sizes, names of dynamic dimensions, None for sizes that are not given.

    Converters such as Paddle2ONNX write -1 or 0 for a size that varies.
    """
    return tuple(
        dim.dim_value if dim.dim_value > 0 else (dim.dim_param or None)
        for dim in value.type.tensor_type.shape.dim
    )


def settle_shapes(model: ModelProto, shapes: Mapping[str, Sequence[int | str]]) -> bool:
    """Write sizes that vary as ONNX does, and shapes that inputs lack; returns whether any changed.

    `shapes` has sizes and names of those that vary, by the name of the input. ONNX Runtime takes a 0
    for the size.
    """
    changed = False
    names = input_names(model)
    inputs = [v for v in model.graph.input if v.name in names and v.type.HasField("tensor_type")]
    for value in (*inputs, *model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.HasField("dim_value") and dim.dim_value <= 0:
                dim.ClearField("dim_value")
                changed = True
    for value in inputs:
        of = value.type.tensor_type
        if of.HasField("shape") or value.name not in shapes:
            continue
        for size in shapes[value.name]:
            of.shape.dim.add(**{"dim_param" if isinstance(size, str) else "dim_value": size})
        changed = True
    return changed


def element_name(element: int) -> str:
    """The name of an element type (`TensorProto.DataType`): `float32`, `int4`; `unknown` for 0."""
    from onnx import TensorProto

    if not element:
        return "unknown"
    name = str(TensorProto.DataType.Name(element)).lower()
    return {"float": "float32", "double": "float64"}.get(name, name)


def tensor_of(value: ValueInfoProto) -> dict[str, Any]:
    """Name, element type and shape of an input or output; the shape is None where it gives none."""
    of = value.type.tensor_type
    shape = list(sizes(value)) if of.HasField("shape") else None
    return {"name": value.name, "dtype": element_name(of.elem_type), "shape": shape}


def opset_of(model: ModelProto) -> int:
    """Version of the default operator set. Raises `InputError` where the model names none."""
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            return int(entry.version)
    raise InputError(
        "the ONNX model names no version of the default operator set", hint="export the model again"
    )


def versions_of(model: ModelProto) -> dict[str, int | str]:
    """The version of its default operator set, of its format, and what wrote it, as facts."""
    default = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    return {
        **({"opset": int(default[0])} if default else {}),
        "ir_version": int(model.ir_version),
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
    }


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """The graph and every graph inside it: branches of If, bodies of Loop and Scan."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                yield from graphs(inner)


def short_name(element: int) -> str:
    """The short name of an element type, as optcli reports it: `fp32`, `fp8`, `int8`."""
    name = element_name(element)
    return "fp8" if name in _FP8 else _SHORT.get(name, name)


def precision_of(model: ModelProto) -> str:
    """What the model computes in: the integers it quantizes to, else the type of most of its weights.

    `int8`, `fp8`: activations too; `int8-a16`: these with 16 bits; `int8-dynamic`: their ranges are
    found at run time; `int8-weights` and `int4-weights`: weights alone, computed in floating point.
    """
    inner = list(graphs(model.graph))
    operators = {node.op_type for graph in inner for node in graph.node}
    values: Counter[str] = Counter()
    for tensor in (tensor for graph in inner for tensor in graph.initializer):
        values[element_name(tensor.data_type)] += math.prod(tensor.dims)
    if "QuantizeLinear" in operators or any(map(is_static, operators)):
        if {"uint16", "int16"} & values.keys():
            return "int8-a16"
        return "fp8" if "float8e4m3fn" in values else "int8"
    if operators & DYNAMIC:
        return "int8-dynamic"
    if operators & {*PAIR, "MatMulNBits"}:
        has_four_bits = "MatMulNBits" in operators or {"int4", "uint4"} & values.keys()
        return "int4-weights" if has_four_bits else "int8-weights"
    floats = {short: values[name] for name, short in _SHORT.items() if name in values}
    return max(floats, key=lambda name: floats[name]) if floats else "fp32"


def with_sizes(model: ModelProto, shapes: Mapping[str, Sequence[int]]) -> tuple[ModelProto, list[str]]:
    """A copy whose inputs have these sizes, and the names of sizes that are still not known.

    A first dimension that varies is a batch, and is 1 where nothing else is said.
    """
    import onnx

    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    left: list[str] = []
    names = input_names(model)
    for value in fixed.graph.input:
        if value.name not in names:
            continue
        shape = shapes.get(value.name)
        for index, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value > 0:
                continue
            if shape is not None and len(shape) == len(value.type.tensor_type.shape.dim):
                dim.dim_value = shape[index]
            elif index == 0:
                dim.dim_value = 1
            else:
                left.append(f"{value.name}[{index}]" + (f" ({dim.dim_param})" if dim.dim_param else ""))
    # What the file says of shapes further on speaks of the sizes that varied.
    del fixed.graph.value_info[:]
    for value in fixed.graph.output:
        value.type.tensor_type.ClearField("shape")
    return fixed, left


def inferred(model: ModelProto) -> tuple[dict[str, Shape], dict[str, int]]:
    """Shapes, where all sizes are known, and element types of every value, by name."""
    from onnx import shape_inference

    graph = shape_inference.infer_shapes(model, data_prop=True).graph
    shapes: dict[str, Shape] = {}
    types: dict[str, int] = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        types[value.name] = value.type.tensor_type.elem_type
        dims = value.type.tensor_type.shape.dim
        if value.type.tensor_type.HasField("shape") and all(dim.HasField("dim_value") for dim in dims):
            shapes[value.name] = tuple(dim.dim_value for dim in dims)
    for weight in graph.initializer:
        shapes[weight.name] = tuple(weight.dims)
        types[weight.name] = weight.data_type
    return shapes, types


def without_weights(model: ModelProto) -> ModelProto:
    """A copy whose large initializers have a type and a shape, but no values: to infer types with."""
    import onnx

    light = onnx.ModelProto()
    light.opset_import.extend(model.opset_import)
    light.functions.extend(model.functions)
    light.ir_version = model.ir_version
    graph = light.graph
    graph.name = model.graph.name
    for part in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(graph, part).extend(getattr(model.graph, part))
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) <= _FEW:
            graph.initializer.append(tensor)
        else:
            left = graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
            left.data_location = onnx.TensorProto.EXTERNAL
            left.external_data.add(key="location", value="weights")
    return light


def foreign_operators(model: ModelProto) -> dict[str, str]:
    """Names of such operators, with their domain before them, and who has them, "" where unknown.

    A domain of ONNX Runtime's is not looked into: versions have different operators.
    """
    from onnx import defs

    known = {schema.domain for schema in defs.get_all_schemas()}
    own = {(function.domain, function.name) for function in model.functions}
    bodies = [graph.node for graph in graphs(model.graph)] + [each.node for each in model.functions]
    foreign: dict[str, str] = {}
    for node in (node for body in bodies for node in body):
        if (node.domain, node.op_type) in own:
            continue
        if node.domain in _ONNX and not defs.has(node.op_type):
            foreign[node.op_type] = "TensorRT's plugins" if node.op_type.endswith("_TRT") else ""
        elif node.domain not in (*known, *_ONNX) and not node.domain.startswith("com.microsoft"):
            foreign[f"{node.domain}.{node.op_type}"] = _OWNERS.get(node.domain, "")
        elif node.domain in _OWNERS:
            foreign[f"{node.domain}.{node.op_type}"] = _OWNERS[node.domain]
    return foreign


def described_foreign(foreign: dict[str, str]) -> str:
    """These operators in words."""
    owners = dict.fromkeys(owner or "nobody that is known here" for owner in foreign.values())
    names = excerpt(", ".join(foreign), 200)
    return f"it calls operators of {' and '.join(owners)}, which ONNX Runtime does not have: {names}"


def refused_foreign(foreign: dict[str, str], place: str) -> InputError:
    """The error for a file that cannot be run here because of them."""
    return InputError(
        described_foreign(foreign),
        place=place,
        hint="export the model without them, or cut the part around them off with"
        " onnx.utils.extract_model",
    )
