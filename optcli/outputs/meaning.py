"""The parts of an output, by dimension and range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from optcli.settings.outputs import Kind

if TYPE_CHECKING:
    import numpy as np

Source = Literal["recipe", "metadata", "shape", "unknown"]


@dataclass(frozen=True)
class OutputPart:
    """Some entries `start` to `stop` of the dimension `axis` of a sample (from 0, without the batch).

    `axis` None: the whole output.
    """

    kind: Kind
    axis: int | None = None
    start: int = 0
    stop: int | None = None

    def of(self, rows: np.ndarray) -> np.ndarray:
        """The part of rows `[samples, ...]`; nothing is copied."""
        if self.axis is None:
            return rows
        return rows[(slice(None),) * (self.axis + 1) + (slice(self.start, self.stop),)]


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
