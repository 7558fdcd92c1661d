"""What an exporter says of a model in its metadata: Ultralytics' task, classes and keypoints.

optcli itself writes such entries of the vision models of transformers (`formats/torch_libraries.py`),
whose outputs are known by their names. `head` says that it did, and of a detector what its scores need.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Task = Literal["detect", "segment", "pose", "obb", "classify", "semantic", "depth", "embed"]
_TASKS: tuple[Task, ...] = Task.__args__  # type: ignore[attr-defined]
_MOST_CLASSES = 100_000


@dataclass(frozen=True)
class Exported:
    """What an exporter says of a model; `keypoints`: how many a box has, and of what size.

    `head` is empty for Ultralytics' exporter, which always has names.
    """

    task: Task
    names: tuple[str, ...]
    keypoints: tuple[int, int] = (0, 0)
    head: str = ""


def exported(metadata: Mapping[str, str]) -> Exported | None:
    """What the entries say together; None where they are not those of such an exporter, or damaged."""
    task = next((each for each in _TASKS if each == metadata.get("task")), None)
    names = _names(_literal(metadata.get("names", "")))
    head = metadata.get("head", "")
    if task is None or not (names or head):
        return None
    if head:
        return Exported(task, names, head=head)
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
