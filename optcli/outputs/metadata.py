"""What an exporter says of a model in its metadata: Ultralytics' task, classes and keypoints."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Task = Literal["detect", "segment", "pose", "obb", "classify"]
_TASKS: tuple[Task, ...] = ("detect", "segment", "pose", "obb", "classify")
_MOST_CLASSES = 100_000


@dataclass(frozen=True)
class Exported:
    """What Ultralytics' exporter says of a model; `keypoints`: how many a box has, and of what size."""

    task: Task
    names: tuple[str, ...]
    keypoints: tuple[int, int] = (0, 0)


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
    return Exported(task, names, (shape[0], shape[1]) if task == "pose" else (0, 0))


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
