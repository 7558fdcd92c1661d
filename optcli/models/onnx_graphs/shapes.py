"""Shapes and types within an ONNX model, by onnx's shape inference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from optcli.models.onnx_graphs.interface import input_names

if TYPE_CHECKING:
    from onnx import ModelProto

Shape = tuple[int, ...]

# Of initializers whose values may decide a shape.
_FEW = 256


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
