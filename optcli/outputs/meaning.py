"""What outputs mean: their parts by dimension and range, and what an exporter's metadata say of them.

Ultralytics writes task, classes and keypoints into a file. optcli writes the same for the vision models
of transformers (`formats/torch_libraries.py`), whose outputs are known by their names: `head` says that
it did, and of a detector what its scores need.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from optcli.settings.outputs import OutputPart

Source = Literal["recipe", "metadata", "shape", "unknown"]
Task = Literal["detect", "segment", "pose", "obb", "classify", "semantic", "depth", "embed"]
_TASKS: tuple[Task, ...] = Task.__args__  # type: ignore[attr-defined]
_MOST_CLASSES = 100_000


WORDS = {
    "boxes": "boxes",
    "objectness": "objectness",
    "scores": "scores",
    "class_numbers": "class numbers",
    "rows": "rows",
    "mask_coefficients": "mask coefficients",
    "prototypes": "prototypes of masks",
    "keypoints": "keypoints",
    "angle": "angle",
    "logits": "scores of classes",
    "class_map": "map of classes",
    "embedding": "embedding",
    "depth": "map of depth",
    "unknown": "unknown",
}
_SOURCES = {
    "recipe": "by the recipe",
    "metadata": "by the file's metadata",
    "shape": "a guess by its shape",
}


@dataclass(frozen=True)
class OutputMeaning:
    """What an output holds, and where that is known from; a `shape` is a guess."""

    output: str
    parts: tuple[OutputPart, ...]
    source: Source

    @property
    def words(self) -> str:
        """It for people: `boxes 0 to 3, scores 4 to 83 (by the file's metadata)`; empty if unknown."""
        if self.source == "unknown":
            return ""
        return f"{', '.join(_in_words(part) for part in self.parts)} ({_SOURCES[self.source]})"


def _in_words(part: OutputPart) -> str:
    if part.axis is None or part.stop is None:
        return WORDS[part.kind]
    last = part.stop - 1
    return f"{WORDS[part.kind]} {part.start}" + (f" to {last}" if last > part.start else "")


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
