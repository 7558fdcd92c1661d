"""What data are to a recipe: which part of them calibrates, which judges, and how that is written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from optcli import data
from optcli.data import DataSettings
from optcli.errors import InputError

ENOUGH = 300  # images to calibrate with
CALIBRATION = ("train", "training", "calibration", "calib")
EVALUATION = ("val", "valid", "validation", "test", "evaluation")


@dataclass(frozen=True)
class Data:
    """`source` as a recipe writes it, and what stands below it for each role, one line an item.

    `kind` says what is judged: classes of images, boxes, or the class of each pixel. `classes` is how
    many there are, `ignored` the value of pixels that do not count. `beside` is what objects have
    beside boxes: `segmentation`, `keypoints` or `corners`. `several`: an image may show several.
    """

    kind: Literal["classes", "boxes", "pixels"]
    source: str
    calibration: tuple[str, ...]
    evaluation: tuple[str, ...]
    classes: int | None = None
    ignored: int | None = None
    about: str = ""
    notes: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    several: bool = False


def require(settings: DataSettings, folder: Path, place: Path) -> None:
    """Raise `InputError` for what is wrong with data that were recognized."""
    for _, message, hint in data.problems(settings, folder):
        raise InputError(message, place=str(place), hint=hint)


def two_parts(names: list[str]) -> tuple[str, str] | None:
    """Of the names of folders those that calibrate and judge, where there are both."""
    first = next((name for name in CALIBRATION if name in names), None)
    second = next((name for name in EVALUATION if name in names), None)
    return (first, second) if first and second else None


def shares(part: str | None = None, calibrating: float = 0.5) -> tuple[str, str]:
    """The splits that share out what lies in one place, seeded."""
    of = f"of: {part}, " if part else ""
    return (
        f"split: {{seed: 0, {of}to: {calibrating:g}}}",
        f"split: {{seed: 0, {of}from: {calibrating:g}}}",
    )


def limited(count: float) -> tuple[str, ...]:
    """The line that takes no more samples than calibration needs."""
    return (f"samples: {ENOUGH}",) if count > ENOUGH else ()
