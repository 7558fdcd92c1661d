"""ONNX: `model.onnx`, and `model.onnx.data` where the weights do not fit into one file.

A message that holds all weights has copied them once, and copies them again when it is written out in
memory. `take_apart` gives a message that has none of them, and `write_with_weights` writes each in its
place: as field `raw_data` of its tensor, the last field of the graph, which is the last of the model.
Parsers take fields in any order (https://protobuf.dev/programming-guides/encoding/#order).
"""

from __future__ import annotations

import io
import math
import mmap
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from optcli.errors import InputError, StepError, TrustError, raised_as

if TYPE_CHECKING:
    from google.protobuf.message import Message
    from onnx import FunctionProto, GraphProto, ModelProto, TensorProto
    from onnx_ir import Model
    from onnxruntime import InferenceSession

FILE = "model.onnx"
DATA = "model.onnx.data"

# A protobuf message cannot be larger than 2 GiB; what is not weights needs room as well.
ONE_FILE_BYTES = 1_900_000_000

# The setting of a session that says where external data lie.
_EXTERNAL_DATA_FOLDER = "session.model_external_initializers_file_folder_path"
# And one of an optimized model that is written: the file of its weights, in the same folder.
_OPTIMIZED_WEIGHTS = "session.optimized_model_external_initializers_file_name"
# A node's `op_type`, field 4 of its message, as it stands in the file.
_SHAPE_OPERATOR = b"\x22\x05Shape"
# Exported networks have some ten thousand.
_MOST_NODES = 1_000_000
# The most bytes that a message takes for one value, of whatever type.
_MOST_BYTES_EACH = 16

# Smaller weights stay in the message: shapes, axes and the like, which whoever reads the graph needs.
_LEAST_BYTES = 1024
# A field that begins with its length, as messages and bytes do.
_WITH_LENGTH = 2


def check(folder: Path) -> None:
    """Raise `InputError` where `model.onnx` is not a sound model.

    `TrustError` where its external data lies outside the folder: reading it would read any file of
    this machine into the model.
    """
    check_file(folder / FILE)


def check_file(path: Path) -> None:
    """Check an ONNX file of any name, such as a user's own. Raises as `check` does."""
    import onnx

    model = parsed(path)
    _check_external_data(model, path)
    _check_expansion(model, path)
    # The checker follows no link to weights, which were looked at above.
    for tensor in _tensors(model):
        if tensor.external_data:
            tensor.CopyFrom(onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=[0]))
    # It wants types and shapes, runtimes do not: some converters leave them out.
    for value in (*model.graph.input, *model.graph.output):
        if value.type.WhichOneof("value") in (None, "tensor_type"):
            value.type.tensor_type.shape.SetInParent()
            value.type.tensor_type.elem_type = (
                value.type.tensor_type.elem_type or onnx.TensorProto.FLOAT
            )
    hint = "export the model again and check it with onnx.checker.check_model"
    with raised_as(InputError, "this is not a valid ONNX model", place=str(path), hint=hint):
        onnx.checker.check_model(model)


def session(
    model: Path | bytes, threads: int = 0, *, optimized: bool = True, weights: Path | None = None
) -> InferenceSession:
    """A model opened in ONNX Runtime on the CPU, which prints nothing. Raises what ONNX Runtime raises.

    `threads` 0 leaves their number to it; `optimized` false keeps every operator of the graph.
    `weights` is the folder with the external data of a model that is given as bytes.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    if weights is not None:
        options.add_session_config_entry(_EXTERNAL_DATA_FOLDER, os.fspath(weights))
    source = model if isinstance(model, bytes) else os.fspath(model)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def write_optimized(folder: Path, path: Path) -> None:
    """Write the model as ONNX Runtime's basic optimizations leave it, its weights in `DATA` beside it.

    These fold constants and batch normalization; every operator is one of ONNX. Raises what ONNX
    Runtime raises.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = os.fspath(path)
    options.add_session_config_entry(_OPTIMIZED_WEIGHTS, DATA)
    onnxruntime.InferenceSession(os.fspath(folder / FILE), options, providers=["CPUExecutionProvider"])


def open(folder: Path) -> ModelProto:
    """The whole model with its weights in memory."""
    import onnx

    return onnx.load(os.fspath(folder / FILE))


def outline(folder: Path) -> ModelProto:
    """The model without external weights: enough for names, shapes and operators."""
    return parsed(folder / FILE)


def save(
    model: ModelProto,
    folder: Path,
    *,
    apart: bool = False,
    weights: Mapping[str, Weight] | None = None,
) -> None:
    """Write the model: in one file where it fits, else with its weights beside it.

    `apart`: with its weights beside it in any case. A model whose weights are written beside it has
    lost them in memory. `weights` are those that the model lacks (`take_apart`).
    """
    import onnx

    if weights:
        weights_bytes = sum(weight.nbytes for weight in weights.values())
        if not apart and model.ByteSize() + weights_bytes < ONE_FILE_BYTES:
            write_with_weights(model, weights, folder / FILE)
            return
        fill_in(model, weights)
    apart = apart or is_large(model)
    onnx.save(
        model, os.fspath(folder / FILE), save_as_external_data=apart, location=DATA if apart else None
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


def bytes_in(folder: Path) -> int:
    """The size of a model on disk: of `model.onnx` and of the weights beside it."""
    files = (folder / FILE, folder / DATA)
    return sum(path.stat().st_size for path in files if path.is_file())


def is_large(model: ModelProto) -> bool:
    """Whether the model does not fit into one file, nor into one message."""
    import onnx

    tensors = list(_tensors(model))
    texts = any(tensor.data_type == onnx.TensorProto.STRING for tensor in tensors)
    elements = sum(math.prod(tensor.dims) for tensor in tensors)
    if not texts and _MOST_BYTES_EACH * elements < ONE_FILE_BYTES // 2:
        return False
    return int(model.ByteSize()) > ONE_FILE_BYTES  # to know that, it is written out in memory


def external_files(model: ModelProto) -> set[str]:
    """Names of the weights files that the model refers to, relative to its folder."""
    entries = (entry for tensor in _tensors(model) for entry in tensor.external_data)
    return {entry.value for entry in entries if entry.key == "location"}


def parsed(path: Path) -> ModelProto:
    """An ONNX file of any name, without external weights. Raises `InputError` for what is none."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        return onnx.load(os.fspath(path), load_external_data=False)
    except FileNotFoundError as error:
        raise InputError(
            "there is no such ONNX file", place=str(path), hint="correct the path, or build again"
        ) from error
    except DecodeError as error:
        raise InputError(
            "this is not an ONNX file, or it is truncated",
            place=str(path),
            hint="copy or export the file again",
        ) from error


def _check_external_data(model: ModelProto, path: Path) -> None:
    # ONNX Runtime's rule: in Hugging Face's cache, model and weights are links to blobs in one folder.
    folders = {os.path.realpath(path.parent), os.path.dirname(os.path.realpath(path))}
    for tensor in _tensors(model):
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if not entries:
            continue
        location = entries.get("location", "")
        data = Path(os.path.realpath(path.parent / location))
        above = os.path.normpath(location).startswith((os.pardir, os.sep))
        if not location or above or not any(map(data.is_relative_to, folders)):
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
    begin = length = end = -1
    with suppress(ValueError):
        begin, length = (int(entries.get(key, 0)) for key in ("offset", "length"))
        end = begin + length
    size_bytes = data.stat().st_size
    if min(begin, length) < 0 or end > size_bytes:
        raise InputError(
            f"the weights file is truncated: {name!r} ends at byte {end}, the file at {size_bytes}",
            place=str(data),
            hint="copy or export the model again",
        )


def _check_expansion(model: ModelProto, path: Path) -> None:
    """Refuse functions that call each other such that a small file stands for millions of nodes."""
    functions: dict[object, FunctionProto] = {
        (each.domain, each.name): each for each in model.functions
    }
    if not functions:
        return
    calls = {key: _called(function) for key, function in functions.items()}
    calls[None] = _called(model.graph)
    count: dict[object, int] = {}
    hint = "export the model again, without functions of its own"
    try:
        order = tuple(TopologicalSorter(calls).static_order())
    except CycleError as error:
        raise InputError("one of its functions calls itself", place=str(path), hint=hint) from error
    for key in order:
        called = calls.get(key)
        count[key] = 1 if called is None else sum(count[each] * n for each, n in called.items())
    if count[None] > _MOST_NODES:
        raise InputError(
            f"its functions stand for {count[None]} nodes, wanted at most {_MOST_NODES}",
            place=str(path),
            hint=hint,
        )


def _called(body: GraphProto | FunctionProto) -> Counter[object]:
    """How often nodes at any depth call which function or operator."""
    return Counter((each.domain, each.op_type) for each in _inner(body, "NodeProto"))


def _tensors(message: Message) -> Iterator[TensorProto]:
    """Every tensor of a message at any depth: each may hold external data."""
    return _inner(message, "TensorProto")


def _inner(message: Message, kind: str) -> Iterator[Any]:
    """Every message of a kind in a message, at any depth."""
    for field, content in message.ListFields():
        if field.message_type is None:
            continue
        for inner in (content,) if hasattr(content, "ListFields") else content:
            if field.message_type.name == kind:
                yield inner
            yield from _inner(inner, kind)


class Weight(Protocol):
    """Values that can write themselves, as tensors of onnx_ir and arrays of NumPy do."""

    @property
    def nbytes(self) -> int:
        """How many bytes `tofile` writes."""

    def tofile(self, file: IO[bytes], /) -> object:
        """Write the values, the first byte of each being its lowest."""


def take_apart(model: Model) -> tuple[ModelProto, dict[str, Weight]]:
    """The message of a model without its larger weights, and these by the names of their initializers.

    They are taken out of `model` as well.
    """
    import onnx
    import onnx_ir

    weights: dict[str, Weight] = {}
    for name, value in model.graph.initializers.items():
        tensor: Any = value.const_value
        if not hasattr(tensor, "tofile") or tensor.dtype == onnx_ir.DataType.STRING:
            continue
        if tensor.nbytes < _LEAST_BYTES:
            continue
        weights[name] = tensor
        # Of such a tensor onnx_ir writes the head alone: it takes the values to be in another file.
        value.const_value = onnx_ir.ExternalTensor(
            "", None, None, tensor.dtype, shape=onnx_ir.Shape(tensor.shape.numpy()), name=name
        )
    message = onnx_ir.serde.serialize_model(model)
    for head in message.graph.initializer:
        if head.name in weights:
            head.ClearField("data_location")
            head.ClearField("external_data")
    assert isinstance(message, onnx.ModelProto)
    return message, weights


def fill_in(model: ModelProto, weights: Mapping[str, Weight]) -> None:
    """Put the weights into the message again."""
    for tensor in model.graph.initializer:
        if tensor.name in weights:
            content = io.BytesIO()
            weights[tensor.name].tofile(content)
            tensor.raw_data = content.getvalue()


def write_with_weights(model: ModelProto, weights: Mapping[str, Weight], path: Path) -> None:
    """Write a model of less than 2 GiB and the weights that its initializers lack, by name."""
    import onnx

    graph = onnx.GraphProto()
    graph.CopyFrom(model.graph)
    tensors = list(graph.initializer)
    heads = [tensor.SerializeToString() for tensor in tensors]
    del graph.initializer[:]
    rest = onnx.ModelProto()
    rest.CopyFrom(model)
    rest.ClearField("graph")
    in_graph = _key(onnx.GraphProto, "initializer")
    parts: list[bytes | Weight] = [graph.SerializeToString()]
    for tensor, head in zip(tensors, heads, strict=True):
        weight = weights.get(tensor.name)
        if weight is None:
            parts += [in_graph, _varint(len(head)), head]
            continue
        values = _key(onnx.TensorProto, "raw_data") + _varint(weight.nbytes)
        parts += [in_graph, _varint(len(head) + len(values) + weight.nbytes), head, values, weight]
    size_bytes = sum(len(part) if isinstance(part, bytes) else part.nbytes for part in parts)
    with path.open("wb") as stream:
        stream.write(rest.SerializeToString())
        stream.write(_key(onnx.ModelProto, "graph") + _varint(size_bytes))
        for part in parts:
            if isinstance(part, bytes):
                stream.write(part)
            else:
                _write_weight(part, stream)


def _write_weight(weight: Weight, stream: IO[bytes]) -> None:
    before = stream.tell()
    weight.tofile(stream)
    written = stream.tell() - before
    if written != weight.nbytes:  # what follows would be read as something else
        raise StepError(
            f"a weight of {weight.nbytes} bytes wrote {written}", hint="report this: it is a defect"
        )


def _key(message: type[ModelProto | TensorProto], field: str) -> bytes:
    """What stands before the length of a field."""
    return _varint(message.DESCRIPTOR.fields_by_name[field].number << 3 | _WITH_LENGTH)


def _varint(number: int) -> bytes:
    """A number in groups of seven bits, the lowest first; the last one has no bit before it."""
    groups = []
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])
