"""What exporters write into a model's file: Ultralytics says the task, the classes and the sizes.

ONNX keeps it in `metadata_props`, OpenVINO in `rt_info` under `model_info`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from optcli.artifact import Artifact, Format

if TYPE_CHECKING:
    from openvino import Model

Task = Literal["detect", "segment", "pose", "obb", "classify"]
_TASKS: tuple[Task, ...] = ("detect", "segment", "pose", "obb", "classify")
_KEYS = ("task", "names", "imgsz", "stride", "batch", "kpt_shape")
_MOST_CHARACTERS = 1_000_000
_MOST_CLASSES = 100_000


@dataclass(frozen=True)
class Exported:
    """What Ultralytics' exporter says of a model; `keypoints` is how many numbers a box has of them."""

    task: Task
    names: tuple[str, ...]
    keypoints: int = 0


def read_metadata(artifact: Artifact) -> dict[str, str]:
    """The entries of a model's file that say what it is; empty for formats that have none."""
    if artifact.format == Format.ONNX:
        from optcli.formats import onnx as onnx_format

        if not (artifact.path / onnx_format.FILE).is_file():  # a runner of one's own need not have it
            return {}
        found = {each.key: each.value for each in onnx_format.outline(artifact.path).metadata_props}
    elif artifact.format == Format.OPENVINO:
        from optcli.formats import openvino as openvino_format

        return of_openvino(openvino_format.open(artifact.path))
    else:
        found = {}
    return said_by_exporter(found)


def said_by_exporter(entries: Mapping[str, str]) -> dict[str, str]:
    """Those entries of a file that say what the model is."""
    return {k: entries[k] for k in _KEYS if len(entries.get(k, "")) in range(1, _MOST_CHARACTERS)}


def of_openvino(model: Model) -> dict[str, str]:
    """Those entries of an OpenVINO model."""
    paths = {key: ["model_info", key] for key in _KEYS}
    return said_by_exporter(
        {k: str(model.get_rt_info(p).astype(str)) for k, p in paths.items() if model.has_rt_info(p)}
    )


def exported(metadata: Mapping[str, str]) -> Exported | None:
    """What the entries say together; None where they are not those of such an exporter, or damaged."""
    task = next((each for each in _TASKS if each == metadata.get("task")), None)
    names = _names(_literal(metadata.get("names", "")))
    if task is None or not names:
        return None
    shape = _literal(metadata.get("kpt_shape", ""))
    sound = isinstance(shape, list | tuple) and len(shape) == 2
    sound = sound and all(isinstance(each, int) and 0 < each < _MOST_CLASSES for each in shape)
    if task == "pose" and not sound:
        return None
    return Exported(task, names, shape[0] * shape[1] if task == "pose" else 0)


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _names(value: Any) -> tuple[str, ...]:
    """Names by number, from 0 and without a gap."""
    if isinstance(value, list | tuple):
        value = dict(enumerate(value))
    if not isinstance(value, dict) or len(value) > _MOST_CLASSES:
        return ()
    if set(value) != set(range(len(value))):
        return ()
    return tuple(str(value[number]) for number in range(len(value)))
