"""What a folder is as the data of a recipe: which part calibrates, which judges, and what of it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from optcli import data
from optcli.data import DataSettings
from optcli.data.imagefolder import SUFFIXES
from optcli.errors import InputError
from optcli.scaffold.wording import relative

ENOUGH = 300  # images to calibrate with
CALIBRATION = ("train", "training", "calibration", "calib")
EVALUATION = ("val", "valid", "validation", "test", "evaluation")


@dataclass(frozen=True)
class Data:
    """`source` as a recipe writes it, and what stands below it for each role, one line an item.

    `kind` says what is judged: classes of images, boxes, or the class of each pixel. `classes` is how
    many there are, `ignored` the value of pixels that do not count. `files` are written beside the
    recipe, by their name.
    """

    kind: Literal["classes", "boxes", "pixels"]
    source: str
    calibration: tuple[str, ...]
    evaluation: tuple[str, ...]
    classes: int | None = None
    ignored: int | None = None
    about: str = ""
    files: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def described(place: Path, recipe: Path) -> Data:
    """What data are to a recipe in the folder `recipe`: COCO's annotations, masks, or class folders.

    Raises `InputError`.
    """
    from optcli.scaffold import coco, masks

    path = place.expanduser().absolute()
    if not path.exists():
        raise InputError("there is no such folder", place=str(place), hint="--data FOLDER of images")
    annotated = coco.described(path, recipe)
    if annotated is not None:
        return annotated
    if not path.is_dir():
        raise InputError(
            "this is no folder of images, and no annotations in COCO's format",
            place=str(place),
            hint="--data FOLDER of class folders, of images beside masks, or with instances.json",
        )
    return masks.described(path, recipe) or _class_folders(path, recipe)


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


def images_below(folder: Path) -> int:
    """How many images lie below a folder."""
    return sum(name.lower().endswith(SUFFIXES) for _, _, names in os.walk(folder) for name in names)


def _class_folders(path: Path, recipe: Path) -> Data:
    names = sorted(each.name for each in path.iterdir() if each.is_dir())
    parts = two_parts(names)
    if parts:
        first, second = parts
        lines = ((f"split: {first}", *limited(images_below(path / first))), (f"split: {second}",))
        classes = _classes(path / second)
    else:
        to, rest = shares()
        lines = ((to, *limited(images_below(path) / 2)), (rest,))
        classes = _classes(path)
    settings = {"source": f"imagefolder:{path}", "split": parts[1] if parts else None}
    require(DataSettings.model_validate(settings), path, path)
    source = f"imagefolder:{relative(path, recipe)}"
    return Data("classes", source, *lines, classes=classes or None, about="one folder per class")


def _classes(folder: Path) -> int:
    return sum(1 for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))
