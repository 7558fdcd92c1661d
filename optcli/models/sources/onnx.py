"""ONNX files: `onnx:models/detector.onnx`, with the weights files that lie beside them."""

from __future__ import annotations

import mmap
import re
import shutil
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar

from optcli.artifact import OUTPUT_TENSORS, Format
from optcli.environment import Needs
from optcli.files import regular_files
from optcli.files.digest import FileDigests
from optcli.models.formats import exporter_metadata
from optcli.models.formats import onnx as onnx_format
from optcli.models.onnx_graphs.protobuf import (
    foreign_operators,
    graphs,
    input_names,
    input_shapes,
    opset_of,
    output_names,
    precision_of,
    refused_foreign,
    settle_shapes,
    tensor_of,
    versions_of,
)
from optcli.models.sources import SourceFacts, _file
from optcli.models.sources._file import DeclaredDifference, FileSource, no_tensor, wrong
from optcli.settings import TensorSpec

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

# One entry {key: "location", value: FILE} of a tensor's external data, as protobuf writes it.
_LOCATION = re.compile(rb"\x0a\x08location\x12([\x80-\xff][\x01-\x7f]|[\x00-\x7f])")


class OnnxSource(FileSource):
    """A network in an ONNX file; it is taken as it is, but for nodes of the same name."""

    format: ClassVar[Format] = Format.ONNX
    needs: ClassVar[Needs] = Needs(("onnx",))
    what: ClassVar[str] = "an ONNX file"

    def ingredients(self, digests: FileDigests) -> dict[str, Any]:
        data = {}
        for name in sorted(locations(self.file)):
            path = self.file.parent / name
            inside = not PurePosixPath(name).is_absolute() and ".." not in PurePosixPath(name).parts
            data[name] = digests.of(path) if inside and regular_files.is_file(path) else None
        return {**super().ingredients(digests), "data": data}

    def write(self, out: Path, inputs: Sequence[TensorSpec]) -> SourceFacts:
        import onnx

        model = onnx_format.parsed(self.file)
        if others := foreign_operators(model):
            raise refused_foreign(others, str(self.file))
        onnx_format.check_file(self.file)
        settled = settle_shapes(model, {spec.name: spec.shape for spec in inputs})
        _check_inputs(model, inputs, self.file)
        _require_tensors(model, self.file)
        _refuse_training(model, self.file)
        external = onnx_format.external_files(model)
        if unknown := external - locations(self.file):
            message = f"the file names its weights file {unknown.pop()!r} in an unusual way"
            raise wrong(self.file, message, "load and save it once with the onnx package")
        for name in sorted(external):
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.file.parent / name, out / name)
        if onnx_format.FILE in external:
            message = (
                f"the weights file is called {onnx_format.FILE}, which is the name of the model itself"
            )
            hint = "save the model again with its weights in a file of another name"
            raise wrong(self.file, message, hint)
        renamed = _rename_duplicates(model)
        if renamed or settled:
            onnx.save(model, str(out / onnx_format.FILE))
        else:
            shutil.copyfile(self.file, out / onnx_format.FILE)
        _refuse_nan(onnx_format.open(out), self.file)
        facts = {
            "source": f"onnx:{self.file.name}",
            **versions_of(model),
            "opset": opset_of(model),
            **({"renamed_nodes": renamed} if renamed else {}),
            OUTPUT_TENSORS: [tensor_of(value) for value in model.graph.output],
            **exporter_metadata.fact(exporter_metadata.of_onnx(model)),
        }
        return SourceFacts(output_names(model), precision_of(model), facts)


def locations(path: Path) -> set[str]:
    """Names of the weights files that an ONNX file refers to, without importing onnx.

    Found by the bytes of the entry, so a name too many is possible, one too few is not; `write`
    compares with what onnx itself reads. Raises OSError.
    """
    names: set[str] = set()
    if regular_files.check(path).st_size == 0:
        return names
    with (
        regular_files.opened(path) as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        for match in _LOCATION.finditer(data):
            size = match.group(1)
            length = size[0] if len(size) == 1 else (size[0] & 0x7F) | size[1] << 7
            text = data[match.end() : match.end() + length]
            try:
                names.add(text.decode())
            except UnicodeDecodeError:
                continue
    return names


def _rename_duplicates(model: ModelProto) -> int:
    """Number the nodes that have another's name, which ONNX Runtime refuses; returns how many."""
    renamed = 0
    for graph in graphs(model.graph):
        names = {node.name for node in graph.node}
        seen: set[str] = set()
        for index, node in enumerate(graph.node):
            if node.name and node.name in seen:
                while node.name in names:
                    node.name = f"{node.name}_{index}"
                names.add(node.name)
                renamed += 1
            seen.add(node.name)
    return renamed


def _check_inputs(model: ModelProto, inputs: Sequence[TensorSpec], path: Path) -> None:
    """Raise `InputError`, with the block to paste, where the recipe's inputs are not the file's."""
    dtypes, shapes = _dtypes(model, path), input_shapes(model)
    apart: list[DeclaredDifference] = []
    specs = {spec.name: spec for spec in inputs}
    if missing := [name for name in shapes if name not in specs]:
        apart.append(DeclaredDifference(f"the recipe lacks the input {', '.join(missing)}"))
    if unknown := [name for name in specs if name not in shapes]:
        apart.append(DeclaredDifference(f"the file has no input {', '.join(unknown)}"))
    for name, shape in shapes.items():
        if name in specs:
            apart.extend(_file.differences(specs[name], dtypes[name], shape))
    if apart:
        raise _file.refused_inputs(apart, {n: (dtypes[n], shape) for n, shape in shapes.items()}, path)


def _require_tensors(model: ModelProto, path: Path) -> None:
    """Raise `InputError` for an output that is no tensor, such as a sequence or a map."""
    for value in model.graph.output:
        kind = value.type.WhichOneof("value")
        if kind not in (None, "tensor_type"):
            raise wrong(
                path,
                f"the output {value.name!r} is no tensor (found: {kind.removesuffix('_type')})",
                "export the model without it (scikit-learn: options={'zipmap': False}), or take it out"
                " of the file's outputs with the onnx package",
            )


def _refuse_training(model: ModelProto, path: Path) -> None:
    """Raise `InputError` for nodes in training mode: answers depend on the batch, or on chance."""
    from onnx import numpy_helper

    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
            constants[node.output[0]] = node.attribute[0].t

    def in_training(node: NodeProto) -> bool:
        if node.op_type == "Dropout" and len(node.input) > 2 and node.input[2] in constants:
            return bool(numpy_helper.to_array(constants[node.input[2]]).any())
        modes = [each.i for each in node.attribute if each.name == "training_mode"]
        return node.op_type == "BatchNormalization" and modes == [1]

    nodes = [n for graph in graphs(model.graph) for n in graph.node if in_training(n)]
    if nodes:
        named = [f"{node.op_type} {node.name or node.output[0]}" for node in nodes]
        more = f" and {len(named) - 3} more" if len(named) > 3 else ""
        raise wrong(
            path,
            f"the file is in training mode: {', '.join(named[:3])}{more}",
            "export it after model.eval(), without training=TrainingMode.TRAINING",
        )


def _dtypes(model: ModelProto, path: Path) -> dict[str, str]:
    """Input name to element type. Raises `InputError` for an input that is no tensor."""
    from onnx import helper

    names = input_names(model)
    dtypes: dict[str, str] = {}
    for value in model.graph.input:
        if value.name not in names:
            continue
        if not value.type.HasField("tensor_type"):
            raise no_tensor(path, value.name)
        dtypes[value.name] = str(helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
    return dtypes


def _refuse_nan(model: ModelProto, path: Path) -> None:
    """Raise `InputError` for weights that hold NaN. Infinity may be intended, as in attention masks."""
    import numpy as np
    from onnx import TensorProto, numpy_helper

    floats = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
    for tensor in model.graph.initializer:
        if tensor.data_type in floats:
            values = numpy_helper.to_array(tensor)
            if count := int(np.isnan(values).sum()):
                message = f"the weights hold NaN: {tensor.name}, {count} of {values.size} values"
                hint = "the training diverged or the file is damaged: use another checkpoint"
                raise wrong(path, message, hint)
