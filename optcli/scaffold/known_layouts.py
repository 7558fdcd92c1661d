"""Data whose layout is known: which part calibrates and which judges, and how a recipe writes it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from optcli import data, environment
from optcli.data import DataSettings, layouts
from optcli.data.collection import Collection
from optcli.data.layouts.masks import Masks, values_of
from optcli.errors import InputError, MissingError, counted
from optcli.scaffold.wording import relative
from optcli.settings import TensorSpec
from optcli.workers import Channel, run

# Of one set so much calibrates: boxes want many images to be judged by.
_CALIBRATING = {True: 0.25, False: 0.5}
_LOOKED_AT = 500  # masks whose pixels are read
_MOST_COLOURS = 256
# Masks of two to six greys that are this far from black hold pictures of numbers, and no numbers.
_MOST_GREYS, _LEAST_GREY = 6, 50
_TIMEOUT_S = 300.0
_ENOUGH = 300  # images to calibrate with
CALIBRATION = ("train", "training", "calibration", "calib")
EVALUATION = ("val", "valid", "validation", "test", "evaluation")


def described(path: Path, recipe: Path) -> Data | None:
    """What a file or folder is to a recipe in the folder `recipe`; None where no layout knows it.

    Raises `InputError` where the data of a layout that is recognised are not whole, and `MissingError`.
    """
    for kind in layouts.names():
        layout = layouts.find(kind)
        if layout.recognises(path):
            for missing in environment.missing(layout.needs):
                raise MissingError(missing.what, place=str(path), hint=missing.hint)
            data = divided(kind, path, recipe)
            return _with_values(data, path) if layout.of_pixels else data
    return None


def divided(kind: str, path: Path, recipe: Path, *more: str) -> Data:
    """The data of a layout, which part of them calibrates and which judges.

    `more` are lines that both roles have. Raises `InputError`.
    """

    def opened(part: str | None) -> Collection:
        settings = _settings(kind, path, part, more)
        require(settings, recipe, path)
        return layouts.find(kind)(settings, recipe)

    every = list(layouts.find(kind)(_settings(kind, path, None, more), recipe).parts())
    parts = [part for part in every if not data.problems(_settings(kind, path, part, more), recipe)]
    usual = [part for name in EVALUATION for part in parts if part.rstrip("0123456789") == name]
    judging = next(iter([*usual, *parts[::-1], *every]), None)
    others = [part for part in parts if part != judging]
    judged = opened(judging)
    if others:
        calibrating = next((p for p in others if p.startswith(("train", "calib"))), others[0])
        count = opened(calibrating).count()
        lines = ((f"split: {calibrating}", *limited(count)), (f"split: {judging}",))
    else:
        share = _CALIBRATING[judged.boxed]
        to, rest = shares(judging, share)
        lines = ((to, *limited(judged.count() * share)), (rest,))
    classes = judged.class_count()
    labels = counted(classes, "class", "classes") if classes else "without labels"
    labels = "each with a mask" if judged.of_pixels else labels
    about = f"{kind}, {counted(judged.count(), 'image')}, {labels}"
    return Data(
        "boxes" if judged.boxed else "classes",
        f"{kind}:{relative(path, recipe)}",
        (*more, *lines[0]),
        (*more, *lines[1]),
        classes=classes,
        about=about,
        notes=(f"the data are read as {about}",),
        further_targets=_other_targets(judged) if judged.boxed else (),
    )


def _other_targets(judged: Collection) -> tuple[str, ...]:
    """What the objects have beside boxes: every target of the data has it."""
    items = judged.open((TensorSpec(name="image", shape=(1, 3, 1, 1)),))
    targets = getattr(items, "targets", lambda: iter(()))()
    _, target = next(targets, ("", {}))
    return tuple(part for part in ("segmentation", "keypoints", "corners") if part in target)


def _settings(kind: str, path: Path, part: str | None, more: tuple[str, ...]) -> DataSettings:
    lines = dict(line.split(": ", 1) for line in more)
    return DataSettings.model_validate({"source": f"{kind}:{path}", "split": part, **lines})


def _with_values(data: Data, path: Path) -> Data:
    """The data of a folder of images and masks, with what the pixels of the masks hold.

    Raises `InputError` for masks that cannot be read, or are none.
    """
    files = Masks(DataSettings(source=f"masks:{path}"), path).masks()
    spread = files[:: max(1, len(files) // _LOOKED_AT)][:_LOOKED_AT]
    request = MasksRequest(tuple(spread), path)
    seen = run(
        "optcli.scaffold.known_layouts:look", request, Pixels, timeout_s=_TIMEOUT_S, reads=str(path)
    )
    return replace(
        data,
        kind="pixels",
        evaluation=(*data.evaluation, *([seen.labels] if seen.labels else [])),
        classes=seen.classes,
        ignored=seen.ignored,
        notes=(*data.notes, *seen.notes),
    )


@dataclass(frozen=True)
class MasksRequest:
    """Files to look at, and the folder that they lie in."""

    files: tuple[Path, ...]
    folder: Path


@dataclass(frozen=True)
class Pixels:
    """What the pixels of masks hold: `classes` is one more than the largest number that counts.

    `ignored` is the number that does not count, `labels` the line of a recipe that makes numbers of
    the values.
    """

    classes: int
    ignored: int | None
    notes: tuple[str, ...]
    labels: str = ""


def look(request: MasksRequest, channel: Channel | None) -> Pixels:
    """In a worker: the values in some masks. Raises `InputError`."""
    import numpy as np

    values: set[int] = set()
    colours: set[tuple[int, ...]] = set()
    for file in request.files:
        pixels = values_of(file)
        if pixels.ndim == 2:
            values |= {int(value) for value in np.unique(pixels)}
        elif len(colours) <= _MOST_COLOURS:
            colours |= {tuple(map(int, one)) for one in np.unique(pixels.reshape(-1, 3), axis=0)}
    if colours:
        return _coloured(colours | {(value,) * 3 for value in values}, request.folder)
    return _numbered(values, request.folder)


def _numbered(values: set[int], folder: Path) -> Pixels:
    if values == {0, 255}:
        note = "the masks hold 0 and 255 alone: 255 is read as class 1, nothing is ignored"
        return Pixels(2, None, (note,), "labels: {map: {255: 1}}")
    greys = values - {0}
    if 1 < len(greys) < _MOST_GREYS and min(greys) >= _LEAST_GREY:
        return _coloured({(value,) * 3 for value in values}, folder)
    classes = max(values - {255}, default=0) + 1
    if 255 not in values:
        return Pixels(classes, None, ())
    note = f"the masks hold the classes 0 to {classes - 1}, and 255, which does not count"
    return Pixels(classes, 255, (note,))


def _coloured(colours: set[tuple[int, ...]], folder: Path) -> Pixels:
    if len(colours) > _MOST_COLOURS:
        raise InputError(
            f"the masks have more colours than classes are possible: over {_MOST_COLOURS}",
            place=str(folder),
            hint="wanted one number for each pixel, or one colour for each class (no JPEG)",
        )
    note = (
        f"the masks have {len(colours)} colours: `labels.colours` numbers them, put them into the"
        " model's order"
    )
    listed = ", ".join(str(list(colour)) for colour in sorted(colours))
    return Pixels(len(colours), 255, (note,), f"labels: {{colours: [{listed}]}}")


@dataclass(frozen=True)
class Data:
    """`source` as a recipe writes it, and what stands below it for each role, one line an item.

    `kind` says what is judged: classes of images, boxes, or the class of each pixel. `classes` is how
    many there are, `ignored` the value of pixels that do not count. `further_targets` are what objects
    have beside boxes: `segmentation`, `keypoints` or `corners`. `several`: an image may show several.
    """

    kind: Literal["classes", "boxes", "pixels"]
    source: str
    calibration: tuple[str, ...]
    evaluation: tuple[str, ...]
    classes: int | None = None
    ignored: int | None = None
    about: str = ""
    notes: tuple[str, ...] = ()
    further_targets: tuple[str, ...] = ()
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
    return (f"samples: {_ENOUGH}",) if count > _ENOUGH else ()
