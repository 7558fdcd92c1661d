"""Images beside masks, as the data of a recipe: what the masks hold says how their labels are read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from optcli.data import DataSettings
from optcli.data.layouts.masks import Masks, values_of
from optcli.errors import InputError
from optcli.scaffold.roles import Data
from optcli.workers import Channel, run

_LOOKED_AT = 500  # masks whose pixels are read
_MOST_COLOURS = 256
# Masks of two to six greys that are this far from black hold pictures of numbers, and no numbers.
_MOST_GREYS, _LEAST_GREY = 6, 50
_TIMEOUT_S = 300.0


def with_values(data: Data, path: Path) -> Data:
    """The data of a folder of images and masks, with what the pixels of the masks hold.

    Raises `InputError` for masks that cannot be read, or are none.
    """
    files = Masks(DataSettings(source=f"masks:{path}"), path).masks()
    spread = files[:: max(1, len(files) // _LOOKED_AT)][:_LOOKED_AT]
    request = MasksRequest(tuple(spread), path)
    seen = run("optcli.scaffold.masks:look", request, Pixels, timeout_s=_TIMEOUT_S)
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
