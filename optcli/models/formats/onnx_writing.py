"""Writes an ONNX file whose weights come straight from where they lie: no message holds a copy.

A message that holds all weights has copied them once, and copies them again when it is written out in
memory before it goes to the disk. Here the message has none of them. Each is written in its place: as
field `raw_data` of its tensor, the last field of the graph, which is the last of the model.
Parsers take fields in any order (https://protobuf.dev/programming-guides/encoding/#order).
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from optcli.errors import StepError

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto
    from onnx_ir import Model

# Smaller weights stay in the message: shapes, axes and the like, which whoever reads the graph needs.
_LEAST_BYTES = 1024
# A field that begins with its length, as messages and bytes do.
_WITH_LENGTH = 2


class Weight(Protocol):
    """Values that can write themselves, as tensors of onnx_ir and arrays of NumPy do."""

    @property
    def nbytes(self) -> int:
        """How many bytes `tofile` writes."""
        ...

    def tofile(self, file: IO[bytes], /) -> object:
        """Write the values, the first byte of each being its lowest."""
        ...


def taken_apart(model: Model) -> tuple[ModelProto, dict[str, Weight]]:
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


def fill(model: ModelProto, weights: Mapping[str, Weight]) -> None:
    """Put the weights into the message again."""
    for tensor in model.graph.initializer:
        if tensor.name in weights:
            content = io.BytesIO()
            weights[tensor.name].tofile(content)
            tensor.raw_data = content.getvalue()


def write(model: ModelProto, weights: Mapping[str, Weight], path: Path) -> None:
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
