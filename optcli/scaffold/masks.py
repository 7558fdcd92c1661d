"""A folder of images beside a folder of masks, as the data of a recipe: read by a file of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from optcli import regular_files
from optcli.data.image_files import FORMATS, SUFFIXES
from optcli.errors import InputError, raised_as
from optcli.scaffold.roles import CALIBRATION, EVALUATION, Data, limited, shares, two_parts
from optcli.scaffold.wording import quoted, relative
from optcli.workers import Channel, run

FILE = "masks.py"
_IMAGES = ("images", "image", "imgs", "img", "jpegimages", "inputs", "rgb", "leftimg8bit")
_MASKS = (
    *("masks", "mask", "labels", "label", "annotations", "annotation", "segmentationclass", "annots"),
    *("segmentation", "segmentations", "targets", "gt", "gtfine", "ground_truth"),
)
_LOOKED_AT = 100  # masks whose pixels are read
_MOST_COLOURS = 256
_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Pairs:
    """Two folders; `ending` is what follows the name of an image in the name of its mask."""

    images: Path
    masks: Path
    ending: str
    count: int


def described(path: Path, recipe: Path) -> Data | None:
    """The data of a recipe in the folder `recipe`, from a folder; None without masks beside images.

    `images/` and `masks/` may have other usual names, with the parts of a split below or above them.
    Raises `InputError` for masks that cannot be read.
    """
    by_name = list(_pairs(path))
    if not by_name:
        return None
    by_part = {name: pairs for name, pairs in by_name if name is not None}
    parts = two_parts(list(by_part))
    if parts:
        first, second = (by_part[name] for name in parts)
        lines = (
            (*_arguments(first, recipe), *limited(first.count)),
            _arguments(second, recipe),
        )
    else:
        first = second = by_name[0][1]
        to, rest = shares()
        arguments = _arguments(first, recipe)
        lines = ((*arguments, to, *limited(first.count / 2)), (*arguments, rest))
    files = _files(second.masks)
    spread = files[:: max(1, len(files) // _LOOKED_AT)][:_LOOKED_AT]
    request = MasksRequest(tuple(spread), second.masks)
    seen = run("optcli.scaffold.masks:look", request, Pixels, timeout_s=_TIMEOUT_S)
    return Data(
        "pixels",
        f"python:{FILE}:pairs",
        *lines,
        classes=seen.classes,
        ignored=seen.ignored,
        about=f"{second.count} images with a mask",
        files={FILE: _written(seen, first.ending)},
        notes=seen.notes,
    )


def _pairs(path: Path) -> Iterator[tuple[str | None, Pairs]]:
    """Pairs of folders with the name of their part, None where there is no split."""
    whole = _pair(path)
    if whole is not None and whole.count:
        yield None, whole
        return
    for name in (*CALIBRATION, *EVALUATION):
        below = _pair(path / name)
        if below is None and whole is not None:
            below = _matched(whole.images / name, whole.masks / name)
        if below is not None and below.count:
            yield name, below


def _pair(folder: Path) -> Pairs | None:
    """The two folders in a folder; `count` is 0 where they hold no pairs themselves."""
    if not folder.is_dir():
        return None
    names = {each.name.lower(): each for each in folder.iterdir() if each.is_dir()}
    images = next((names[name] for name in _IMAGES if name in names), None)
    masks = next((names[name] for name in _MASKS if name in names), None)
    if images is None or masks is None:
        return None
    return _matched(images, masks) or Pairs(images, masks, "", 0)


def _matched(images: Path, masks: Path) -> Pairs | None:
    if not (images.is_dir() and masks.is_dir()):
        return None
    stems = {path.stem for path in _files(images)}
    named = {path.stem for path in _files(masks)}
    endings = set()
    for mask in sorted(named)[:5]:
        # What follows the longest name of an image that the mask's name begins with.
        begins = max((stem for stem in stems if mask.startswith(stem)), key=len, default=mask)
        endings.add(mask.removeprefix(begins))
    for ending in ("", *sorted(endings - {""})):
        count = sum(f"{stem}{ending}" in named for stem in stems)
        if count:
            return Pairs(images, masks, ending, count)
    return None


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)


def _arguments(pairs: Pairs, recipe: Path) -> tuple[str, ...]:
    images, masks = (quoted(relative(path, recipe)) for path in (pairs.images, pairs.masks))
    return f"arguments: {{images: {images}, masks: {masks}}}", f"files: [{images}, {masks}]"


@dataclass(frozen=True)
class MasksRequest:
    """Files to look at, and the folder that they lie in."""

    files: tuple[Path, ...]
    folder: Path


@dataclass(frozen=True)
class Pixels:
    """What the pixels of masks hold: `classes` is one more than the largest number that counts.

    `ignored` is the number that does not count. `colours` stand for the classes, in order, where they
    are no numbers; `binary` masks hold 0 and 255.
    """

    classes: int
    ignored: int | None
    notes: tuple[str, ...]
    colours: tuple[tuple[int, ...], ...] = ()
    binary: bool = False


def look(request: MasksRequest, channel: Channel) -> Pixels:
    """In a worker: the values in some masks. Raises `InputError`."""
    import numpy as np
    from PIL import Image

    values: set[int] = set()
    colours: set[tuple[int, ...]] = set()
    for file in request.files:
        hint = "remove it, or copy it again"
        with (
            raised_as(InputError, "the mask cannot be read", reason=str, place=str(file), hint=hint),
            regular_files.opened(file) as stream,
            Image.open(stream, formats=FORMATS) as mask,
        ):
            several = len(mask.getbands()) > 1
            pixels = np.asarray(mask.convert("RGB") if several else mask)
        if pixels.ndim == 2:
            values |= {int(value) for value in np.unique(pixels)}
        elif len(colours) <= _MOST_COLOURS:
            colours |= {tuple(map(int, one)) for one in np.unique(pixels.reshape(-1, 3), axis=0)}
    if all(len(set(colour)) == 1 for colour in colours):  # grey, in three channels
        return _numbered(values | {colour[0] for colour in colours})
    if colours:
        return _coloured(tuple(sorted(colours)), request.folder)
    return _numbered(values)


def _numbered(values: set[int]) -> Pixels:
    if values == {0, 255}:
        note = "the masks hold 0 and 255 alone: 255 is read as class 1, nothing is ignored"
        return Pixels(2, None, (note,), binary=True)
    classes = max(values - {255}, default=0) + 1
    if 255 not in values:
        return Pixels(classes, None, ())
    note = f"the masks hold the classes 0 to {classes - 1}, and 255, which does not count"
    return Pixels(classes, 255, (note,))


def _coloured(colours: tuple[tuple[int, ...], ...], folder: Path) -> Pixels:
    if len(colours) > _MOST_COLOURS:
        raise InputError(
            f"the masks have more colours than classes are possible: over {_MOST_COLOURS}",
            place=str(folder),
            hint="wanted one number for each pixel, or one colour for each class (no JPEG)",
        )
    note = (
        f"the masks have {len(colours)} colours: {FILE} numbers them, put them into the model's order"
    )
    return Pixels(len(colours), 255, (note,), colours)


def _written(seen: Pixels, ending: str) -> str:
    """The file that reads the pairs."""
    labels = _NUMBERS
    if seen.binary:
        labels = _BINARY
    elif seen.colours:
        table = "".join(f"    {list(colour)},\n" for colour in seen.colours)
        labels = _COLOURS.format(table=table)
    return _SKELETON.format(formats=FORMATS, ending=ending, labels=labels)


_NUMBERS = '''\
def labels(mask: Image.Image) -> np.ndarray:
    """The class of each pixel, `[height, width]`: what the mask holds, indices of its palette too."""
    return np.asarray(mask.getchannel(0) if len(mask.getbands()) > 1 else mask)
'''
_BINARY = '''\
def labels(mask: Image.Image) -> np.ndarray:
    """The class of each pixel, `[height, width]`: 255 in the mask is class 1."""
    return (np.asarray(mask.convert("L")) > 0).astype(np.uint8)
'''
_COLOURS = '''\
# The colour of each class, in the order in which the model numbers them.
COLOURS = [
{table}]


def labels(mask: Image.Image) -> np.ndarray:
    """The class of each pixel, `[height, width]`; 255 for a colour that is none of a class."""
    pixels = np.asarray(mask.convert("RGB"))
    classes = np.full(pixels.shape[:2], 255, np.uint8)
    for number, colour in enumerate(COLOURS):
        classes[(pixels == colour).all(axis=2)] = number
    return classes
'''
_SKELETON = '''\
"""Images with a mask each, for a recipe's data. Written by `optcli init`: change it as you like."""

from pathlib import Path

import numpy as np
from PIL import Image

SUFFIXES = {{".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp", ".gif", ".ppm", ".pgm"}}
FORMATS = {formats!r}
ENDING = {ending!r}  # what follows the name of an image in the name of its mask


class Pairs:
    """Images and masks of the same name, read one at a time."""

    def __init__(self, images: str, masks: str):
        here = Path(__file__).parent
        named = {{path.stem: path for path in files(here / masks)}}
        self.pairs = [
            (path, named[path.stem + ENDING])
            for path in files(here / images)
            if path.stem + ENDING in named
        ]

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> dict:
        image, mask = self.pairs[index]
        return {{
            "inputs": opened(image).convert("RGB"),  # `prepare:` in the recipe does the rest
            "target": labels(opened(mask)),
            "id": image.name,
        }}


def pairs(images: str, masks: str) -> Pairs:
    """What a recipe names: folders, relative to this file."""
    return Pairs(images, masks)


def opened(path: Path) -> Image.Image:
    return Image.open(path, formats=FORMATS)


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)


{labels}'''
