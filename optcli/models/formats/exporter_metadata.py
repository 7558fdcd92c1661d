"""What an exporter wrote into a model's file of what the model is, as facts of an artifact.

Ultralytics writes the task, the names of the classes and the size of images: into ONNX's
`metadata_props`, into OpenVINO's `rt_info` under `model_info`, and as JSON in front of a plan.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli.files import regular_files

if TYPE_CHECKING:
    from onnx import ModelProto
    from openvino import Model

_FACT = "exporter_metadata"  # `exporter` is what `export_onnx` calls the one that it used
_KEYS = ("task", "names", "imgsz", "stride", "batch", "kpt_shape", "head")
_MOST_CHARACTERS = 1_000_000
_LENGTH_BYTES = 4


def of_onnx(model: ModelProto) -> dict[str, str]:
    """The entries of an ONNX file that say what the model is."""
    return _known({each.key: each.value for each in model.metadata_props})


def of_openvino(model: Model) -> dict[str, str]:
    """The entries of an OpenVINO model that say what it is."""
    paths = {key: ["model_info", key] for key in _KEYS}
    return _known(
        {k: str(model.get_rt_info(p).astype(str)) for k, p in paths.items() if model.has_rt_info(p)}
    )


def outputs_of_onnx(model: ModelProto) -> list[dict[str, Any]]:
    """Name, dtype and shape of each output of an ONNX file; sizes that vary have a name or None."""
    from onnx import helper

    outputs = []
    for value in model.graph.output:
        tensor = value.type.tensor_type
        shape = [dim.dim_value or dim.dim_param or None for dim in tensor.shape.dim]
        dtype = str(helper.tensor_dtype_to_np_dtype(tensor.elem_type)) if tensor.elem_type else ""
        outputs.append({"name": value.name, "dtype": dtype, "shape": shape})
    return outputs


def of_engine(path: Path) -> dict[str, str]:
    """The entries in front of a plan, where an engine has some: their length in 4 bytes, then JSON.

    Values are written as Python's, as in the other formats. What is no such beginning gives none.
    Raises OSError.
    """
    with regular_files.opened(path) as stream:
        size = int.from_bytes(stream.read(_LENGTH_BYTES), "little")
        head = stream.read(size) if size <= _MOST_CHARACTERS else b""
    if len(head) != size:
        return {}
    try:
        entries = json.loads(head.decode())
    except (ValueError, RecursionError):  # a plan begins with other bytes
        return {}
    if not isinstance(entries, dict):
        return {}
    return _known({k: v if isinstance(v, str) else repr(_numbered(v)) for k, v in entries.items()})


def _numbered(value: Any) -> Any:
    """JSON has no numbers as keys: `{"0": "person"}` is written for `{0: "person"}`."""
    if isinstance(value, dict) and all(key.isdecimal() and len(key) < 10 for key in value):
        return {int(key): each for key, each in value.items()}
    return value


def fact(metadata: Mapping[str, str]) -> dict[str, Any]:
    """The entries as a fact of an artifact, which those that are made of it inherit; or no fact."""
    return {_FACT: dict(metadata)} if "task" in metadata else {}


def of_facts(facts: Mapping[str, Any]) -> dict[str, str]:
    """The entries that facts hold. Those of an artifact from elsewhere may be anything."""
    metadata = facts.get(_FACT)
    return _known(metadata) if isinstance(metadata, dict) else {}


def _known(entries: Mapping[str, Any]) -> dict[str, str]:
    texts = {key: entries[key] for key in _KEYS if isinstance(entries.get(key), str)}
    return {key: text for key, text in texts.items() if 0 < len(text) < _MOST_CHARACTERS}
