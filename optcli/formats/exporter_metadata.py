"""What an exporter wrote into a model's file of what the model is, as facts of an artifact.

Ultralytics writes the task, the names of the classes and the size of images: into ONNX's
`metadata_props`, and into OpenVINO's `rt_info` under `model_info`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnx import ModelProto
    from openvino import Model

_FACT = "exporter_metadata"  # `exporter` is what `export_onnx` calls the one that it used
_KEYS = ("task", "names", "imgsz", "stride", "batch", "kpt_shape")
_MOST_CHARACTERS = 1_000_000


def of_onnx(model: ModelProto) -> dict[str, str]:
    """The entries of an ONNX file that say what the model is."""
    return _known({each.key: each.value for each in model.metadata_props})


def of_openvino(model: Model) -> dict[str, str]:
    """The entries of an OpenVINO model that say what it is."""
    paths = {key: ["model_info", key] for key in _KEYS}
    return _known(
        {k: str(model.get_rt_info(p).astype(str)) for k, p in paths.items() if model.has_rt_info(p)}
    )


def fact(metadata: Mapping[str, str]) -> dict[str, Any]:
    """The entries as a fact of an artifact, which those that are made of it inherit; or no fact."""
    return {_FACT: dict(metadata)} if "task" in metadata else {}


def of_facts(facts: Mapping[str, Any]) -> dict[str, str]:
    """The entries that facts hold. Those of an artifact from elsewhere may be anything."""
    found = facts.get(_FACT)
    return _known(found) if isinstance(found, dict) else {}


def _known(entries: Mapping[str, Any]) -> dict[str, str]:
    texts = {key: entries[key] for key in _KEYS if isinstance(entries.get(key), str)}
    return {key: text for key, text in texts.items() if 0 < len(text) < _MOST_CHARACTERS}
