"""ONNX: `model.onnx`, and `model.onnx.data` where the weights do not fit into one file."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from optcli.errors import InputError, TrustError, first_line

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, TensorProto

FILE = "model.onnx"
DATA = "model.onnx.data"

# A protobuf message cannot be larger than 2 GiB; what is not weights needs room as well.
ONE_FILE_BYTES = 1_900_000_000

# A node's `op_type`, field 4 of its message, as it stands in the file.
_SHAPE_OPERATOR = b"\x22\x05Shape"
# Of a value of any type, as a message holds it; and of initializers whose values may decide a shape.
_MOST_BYTES_EACH = 16
_FEW = 256

QUANTIZED = frozenset(
    {
        "QuantizeLinear",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "QLinearConv",
        "QLinearMatMul",
        "ConvInteger",
        "MatMulInteger",
        "MatMulNBits",
    }
)


def check(folder: Path) -> None:
    """Raise `InputError` where `model.onnx` is not a sound model.

    `TrustError` where its external data lies outside the folder: reading it would read any file of
    this machine into the model.
    """
    check_file(folder / FILE)


def check_file(path: Path) -> None:
    """The same for a file of any name: what a person's own ONNX file must pass."""
    import onnx

    model = _parse(path)
    _check_external_data(model, path)
    # The checker wants shapes of outputs, runtimes do not: some converters leave them out.
    shapeless = any(not value.type.tensor_type.HasField("shape") for value in model.graph.output)
    try:
        if shapeless and not external_files(model):
            onnx.checker.check_model(onnx.shape_inference.infer_shapes(model))
        else:
            onnx.checker.check_model(os.fspath(path))
    except Exception as error:
        raise InputError(
            f"this is not a valid ONNX model: {first_line(error)}",
            place=str(path),
            hint="export the model again and check it with onnx.checker.check_model",
        ) from error


def open(folder: Path) -> ModelProto:
    """The whole model with its weights in memory."""
    import onnx

    return onnx.load(os.fspath(folder / FILE))


def outline(folder: Path) -> ModelProto:
    """The model without external weights: enough for names, shapes and operators."""
    return _parse(folder / FILE)


def save(model: ModelProto, folder: Path) -> None:
    """Write the model: in one file where it fits, else with its weights beside it."""
    import onnx

    large = is_large(model)
    onnx.save(
        model, os.fspath(folder / FILE), save_as_external_data=large, location=DATA if large else None
    )


def works_out_shapes(folder: Path) -> bool:
    """Whether the graph has an operator that reads a shape; by the file's bytes, nothing is parsed.

    True also where such bytes lie among the weights by chance.
    """
    path = folder / FILE
    if path.stat().st_size == 0:
        return False
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(_SHAPE_OPERATOR) >= 0


def is_large(model: ModelProto) -> bool:
    """Whether the model does not fit into one file, nor into one message."""
    import onnx

    tensors = list(_tensors(model))
    texts = any(tensor.data_type == onnx.TensorProto.STRING for tensor in tensors)
    if not texts and _MOST_BYTES_EACH * sum(map(_elements, tensors)) < ONE_FILE_BYTES // 2:
        return False
    return int(model.ByteSize()) > ONE_FILE_BYTES  # to know that, it is written out in memory


def without_weights(model: ModelProto) -> ModelProto:
    """A copy whose large initializers have a type and a shape, but no values: to infer types with."""
    import onnx

    found = onnx.ModelProto()
    found.opset_import.extend(model.opset_import)
    found.functions.extend(model.functions)
    found.ir_version = model.ir_version
    graph = found.graph
    graph.name = model.graph.name
    for part in ("node", "input", "output", "value_info", "sparse_initializer"):
        getattr(graph, part).extend(getattr(model.graph, part))
    for tensor in model.graph.initializer:
        if _elements(tensor) <= _FEW:
            graph.initializer.append(tensor)
        else:
            left = graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
            left.data_location = onnx.TensorProto.EXTERNAL
            left.external_data.add(key="location", value=DATA)
    return found


def input_names(model: ModelProto) -> tuple[str, ...]:
    """Names of the inputs, in order; old files list their weights as inputs too, these are left out."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return tuple(value.name for value in model.graph.input if value.name not in weights)


def input_shapes(model: ModelProto) -> dict[str, tuple[int | str | None, ...]]:
    """Input name to shape: sizes, names of dynamic dimensions, None where nothing is said."""
    wanted = input_names(model)
    return {
        value.name: tuple(
            dim.dim_value if dim.HasField("dim_value") else (dim.dim_param or None)
            for dim in value.type.tensor_type.shape.dim
        )
        for value in model.graph.input
        if value.name in wanted
    }


def output_names(model: ModelProto) -> tuple[str, ...]:
    """Names of the outputs, in order."""
    return tuple(value.name for value in model.graph.output)


def external_files(model: ModelProto) -> set[str]:
    """Names of the weights files that the model refers to, relative to its folder."""
    entries = (entry for tensor in _tensors(model) for entry in tensor.external_data)
    return {entry.value for entry in entries if entry.key == "location"}


def opset(model: ModelProto) -> int:
    """Version of the default operator set. Raises `InputError` where the model names none."""
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            return int(entry.version)
    raise InputError(
        "the ONNX model names no version of the default operator set", hint="export the model again"
    )


def precision(model: ModelProto) -> str:
    """What the model computes in: the integers it quantizes to, else the type of most of its weights.

    `int8`, `fp8`: activations too; `int8-dynamic`: their ranges are found at run time; `int8-weights`
    and `int4-weights`: weights alone, computed in floating point.
    """
    import onnx

    operators = {node.op_type for graph in graphs(model.graph) for node in graph.node}
    if operators & QUANTIZED:
        return _integers(model, operators)
    short = {onnx.TensorProto.FLOAT: "fp32", onnx.TensorProto.FLOAT16: "fp16"}
    short |= {onnx.TensorProto.BFLOAT16: "bf16", onnx.TensorProto.DOUBLE: "fp64"}
    sizes: dict[str, int] = {}
    for graph in graphs(model.graph):
        for tensor in graph.initializer:
            if tensor.data_type in short:
                name = short[tensor.data_type]
                sizes[name] = sizes.get(name, 0) + _elements(tensor)
    return max(sizes, key=lambda name: sizes[name]) if sizes else "fp32"


def _integers(model: ModelProto, operators: set[str]) -> str:
    import onnx

    tensors = [tensor for inner in graphs(model.graph) for tensor in inner.initializer]
    if operators & {"QuantizeLinear", "QLinearConv", "QLinearMatMul"}:
        return "fp8" if any(t.data_type == onnx.TensorProto.FLOAT8E4M3FN for t in tensors) else "int8"
    if operators & {"DynamicQuantizeLinear", "ConvInteger", "MatMulInteger"}:
        return "int8-dynamic"
    kinds = {tensor.data_type for tensor in tensors}
    has_four_bits = (
        "MatMulNBits" in operators or {onnx.TensorProto.INT4, onnx.TensorProto.UINT4} & kinds
    )
    return "int4-weights" if has_four_bits else "int8-weights"


def _elements(tensor: TensorProto) -> int:
    count = 1
    for size in tensor.dims:
        count *= size
    return count


def _parse(path: Path) -> ModelProto:
    import onnx
    from google.protobuf.message import DecodeError

    try:
        return onnx.load(os.fspath(path), load_external_data=False)
    except FileNotFoundError as error:
        raise InputError(
            "there is no such ONNX file", place=str(path), hint="mend the path, or build again"
        ) from error
    except DecodeError as error:
        raise InputError(
            "this is not an ONNX file, or it is truncated",
            place=str(path),
            hint="copy or export the file again",
        ) from error


def _check_external_data(model: ModelProto, path: Path) -> None:
    folder = Path(os.path.realpath(path.parent))
    for tensor in _tensors(model):
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if not entries:
            continue
        location = entries.get("location", "")
        data = Path(os.path.realpath(folder / location))
        if not location or os.path.isabs(location) or not data.is_relative_to(folder):
            raise TrustError(
                f"the weights of {tensor.name!r} lie outside the model's folder: {location!r}",
                place=str(path),
                hint="save the model again with its external data beside it",
            )
        if not data.is_file():
            raise InputError(
                f"the weights file {location!r} is missing",
                place=str(path),
                hint=f"copy {location} beside {path.name}",
            )
        _check_extent(entries, data, tensor.name)


def _check_extent(entries: dict[str, str], data: Path, name: str) -> None:
    wanted = -1
    with suppress(ValueError):
        wanted = int(entries.get("offset", 0)) + int(entries.get("length", 0))
    found = data.stat().st_size
    if not 0 <= wanted <= found:
        raise InputError(
            f"the weights file is truncated: {name!r} ends at byte {wanted}, the file at {found}",
            place=str(data),
            hint="copy or export the model again",
        )


def _tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every tensor that may hold external data: initializers and attributes, of subgraphs as well."""
    nodes = [node for function in model.functions for node in function.node]
    for graph in graphs(model.graph):
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
        nodes.extend(graph.node)
    for node in nodes:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors


def graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """The graph and every graph inside it: branches of If, bodies of Loop and Scan."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs(attribute.g)
            for inner in attribute.graphs:
                yield from graphs(inner)
