"""Core ML: `model.mlpackage`, a folder with a program and its weights, for iPhones, iPads and Macs.

Every system reads and writes it. macOS alone runs it.
"""

from __future__ import annotations

import json
import os
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from optcli.errors import InputError, raised_as

if TYPE_CHECKING:
    from coremltools.models import MLModel

FILE = "model.mlpackage"
# What tells that a folder is such a package.
MANIFEST = f"{FILE}/Manifest.json"

# The oldest systems that run a file, by what the file calls its version.
_SYSTEMS = {4: "iOS 13", 5: "iOS 14", 6: "iOS 15", 7: "iOS 16", 8: "iOS 17", 9: "iOS 18", 10: "iOS 26"}
# The head of one array in the file of weights: a mark, the element type, bytes and their place.
_HEAD = struct.Struct("<IIQQ")
_MARK = 0xDEADBEEF
# What coremltools writes of the day and the machine: an equal network must give equal files.
_OF_THE_DAY = ("com.github.apple.coremltools.conversion_date",)


class FeatureDescription(NamedTuple):
    """An input or output: its element type and sizes; None where a size varies or is not said."""

    name: str
    dtype: str
    sizes: tuple[int | None, ...]


def open(folder: Path) -> MLModel:
    """The model, not loaded into Core ML: what is written in it. Raises as `read`."""
    return read(folder / FILE)


def read(path: Path) -> MLModel:
    """The model of a package, or of a `.mlmodel` file, to look into.

    Raises `InputError` where it is damaged, or its weights are not all there.
    """
    hint = "build it again with to_coreml, or copy the whole folder"
    with raised_as(InputError, "this is not a valid Core ML model", place=str(path), hint=hint):
        if path.suffix != ".mlmodel" and not (path / "Manifest.json").is_file():
            raise ValueError("it has no Manifest.json")
        from coremltools.models import MLModel

        model = MLModel(os.fspath(path), skip_model_load=True)
        if model.get_spec().WhichOneof("Type") is None:
            raise ValueError("it holds no model")
        _require_weights(model)
        return model


def load(folder: Path, units: str) -> MLModel:
    """The model in Core ML itself, ready to run, on macOS. `units` as coremltools calls them.

    Raises `InputError` where Core ML does not take it.
    """
    path = folder / FILE
    hint = "the log has Core ML's own words; an older macOS wants an older `target` in to_coreml"
    with raised_as(InputError, "Core ML cannot load the model", place=str(path), hint=hint):
        import coremltools

        return coremltools.models.MLModel(os.fspath(path), compute_units=coremltools.ComputeUnit[units])


def save(model: MLModel, folder: Path) -> None:
    """Write a model; the same model gives the same files whenever it is written."""
    for name in _OF_THE_DAY:
        model.user_defined_metadata.pop(name, None)
    model.save(os.fspath(folder / FILE))
    path = folder / MANIFEST
    manifest = json.loads(path.read_text())
    names = {
        key: str(uuid.uuid5(uuid.NAMESPACE_URL, entry["path"])).upper()
        for key, entry in manifest["itemInfoEntries"].items()
    }
    manifest["itemInfoEntries"] = {
        names[key]: entry for key, entry in manifest["itemInfoEntries"].items()
    }
    manifest["rootModelIdentifier"] = names[manifest["rootModelIdentifier"]]
    path.write_text(json.dumps(manifest, indent=4, sort_keys=True))


def oldest_system(model: MLModel) -> str:
    """The oldest system that runs the model, by its name on phones: `iOS 17`."""
    version = model.get_spec().specificationVersion
    return _SYSTEMS.get(version, f"version {version} of Core ML's files")


def tensors(model: MLModel) -> tuple[list[FeatureDescription], list[FeatureDescription]]:
    """Inputs and outputs as the model declares them."""
    about = model.get_spec().description
    given = {each.name: each for operation in operations(model) for each in operation.outputs}
    outputs = []
    for feature in about.output:
        tensor = _tensor(feature)
        if not tensor.sizes and feature.name in given:  # the program says what the head leaves out
            tensor = tensor._replace(sizes=_sizes(given[feature.name].type.tensorType))
        outputs.append(tensor)
    return [_tensor(each) for each in about.input], outputs


def operations(model: MLModel) -> Iterator[Any]:
    """The operations of a program, those inside of loops and branches too; none of an older model."""
    for function in model.get_spec().mlProgram.functions.values():
        yield from _of_block(function.block_specializations[function.opset])


def weights(model: MLModel) -> Iterator[Any]:
    """The arrays of a program that lie in its file of weights."""
    for operation in operations(model):
        values = [*operation.attributes.values()]
        values += [each.value for one in operation.inputs.values() for each in one.arguments]
        yield from (each for each in values if each.HasField("blobFileValue"))


def element_type(tensor_type: Any) -> str:
    """An element type of a program in the words of recipes: `float16`, `int8`."""
    from coremltools.proto import MIL_pb2

    return str(MIL_pb2.DataType.Name(tensor_type.dataType)).lower()


def _of_block(block: Any) -> Iterator[Any]:
    for operation in block.operations:
        yield operation
        for inner in operation.blocks:
            yield from _of_block(inner)


def _sizes(tensor_type: Any) -> tuple[int | None, ...]:
    return tuple(
        int(each.constant.size) if each.WhichOneof("dimension") == "constant" else None
        for each in tensor_type.dimensions
    )


def _tensor(feature: Any) -> FeatureDescription:
    kind = feature.type.WhichOneof("Type")
    if kind == "imageType":
        image = feature.type.imageType
        return FeatureDescription(feature.name, "image", (int(image.height), int(image.width)))
    if kind != "multiArrayType":
        return FeatureDescription(feature.name, str(kind).removesuffix("Type"), ())
    array = feature.type.multiArrayType
    kind = str(array.ArrayDataType.Name(array.dataType)).lower()
    sizes: tuple[int | None, ...] = tuple(map(int, array.shape))
    spans = array.shapeRange.sizeRanges
    if spans:
        sizes = tuple(int(s.lowerBound) if s.lowerBound == s.upperBound else None for s in spans)
    return FeatureDescription(feature.name, "float64" if kind == "double" else kind, sizes)


def _require_weights(model: MLModel) -> None:
    """Raise ValueError unless every array of the program lies whole in the file of weights."""
    folder = model.weights_dir
    for value in weights(model):
        blob = value.blobFileValue
        path = Path(folder or "", Path(blob.fileName).name)
        size = path.stat().st_size
        with path.open("rb") as stream:
            stream.seek(blob.offset)
            head = stream.read(_HEAD.size)
        mark, _, length, start = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 0, 0, 0)
        if mark != _MARK or start + length > size:
            raise ValueError(f"{path.name} is cut off: the program reads beyond its {size} bytes")
