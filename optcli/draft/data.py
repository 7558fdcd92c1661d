"""A folder of images as the data of a recipe: which part calibrates, which judges."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from optcli import data
from optcli.data import DataSettings
from optcli.data.imagefolder import SUFFIXES
from optcli.errors import InputError

_ENOUGH = 300  # images to calibrate with
_CALIBRATION = ("train", "calibration", "calib")
_EVALUATION = ("val", "valid", "validation", "test", "evaluation")


@dataclass(frozen=True)
class Data:
    """`source` as a recipe writes it, the split of each role, and the number of class folders.

    `samples` is how many calibrate, None where all there are.
    """

    source: str
    calibration: str
    evaluation: str
    classes: int
    samples: int | None


def described(folder: Path, recipe: Path) -> Data:
    """What a folder of images is to a recipe in the folder `recipe`. Raises `InputError`."""
    place = folder.expanduser().absolute()
    if not place.is_dir():
        raise InputError("there is no such folder", place=str(folder), hint="--data FOLDER of images")
    names = sorted(each.name for each in place.iterdir() if each.is_dir())
    first = next((name for name in _CALIBRATION if name in names), None)
    second = next((name for name in _EVALUATION if name in names), None)
    source = f"imagefolder:{os.path.relpath(place, recipe)}"
    if first and second:
        found = Data(source, first, second, _classes(place / second), _samples(place / first, 1))
    else:
        halves = "{{seed: 0, {}: 0.5}}"
        found = Data(
            source, halves.format("to"), halves.format("from"), _classes(place), _samples(place, 2)
        )
    part = second if first and second else None
    settings = DataSettings.model_validate({"source": f"imagefolder:{place}", "split": part})
    for _, message, hint in data.problems(settings, place):
        raise InputError(message, place=str(folder), hint=hint)
    return found


def _samples(folder: Path, parts: int) -> int | None:
    """How many of one of the equal parts of a folder calibrate."""
    count = sum(name.lower().endswith(SUFFIXES) for _, _, names in os.walk(folder) for name in names)
    return _ENOUGH if count // parts > _ENOUGH else None


def _classes(folder: Path) -> int:
    return sum(1 for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))
