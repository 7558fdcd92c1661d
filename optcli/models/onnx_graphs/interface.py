"""What an ONNX model says to the outside: inputs, outputs and the version of its operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from optcli.errors import InputError

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, ValueInfoProto


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
