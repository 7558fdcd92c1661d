"""Evaluation images with what a variant and the baseline answered: which, and how they are drawn."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli import data
from optcli.accuracy import detections, objects
from optcli.accuracy.evaluation import Evaluation
from optcli.accuracy.objects import Objects
from optcli.accuracy.parts import CONFIDENT
from optcli.data import DataSettings, Preparation
from optcli.errors import InputError
from optcli.results.pictures import FOLDER, Answer, Picture, Pictures
from optcli.settings import TensorSpec
from optcli.workers import Channel

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image, ImageDraw

# All pictures of a page. In base64, as a page holds them, they take 300 kB.
MOST_BYTES = 225_000
_WORST, _RANDOM = 3, 2
# The longest side in pixels and the quality of JPEG: the first at which all pictures are small enough.
_SIZES = ((320, 80), (320, 60), (320, 40), (224, 45), (160, 40))
# In memory, where photographs have a hundred times as many pixels.
_KEPT = 2 * _SIZES[0][0]
# Boxes that both have, that the variant alone has or gives another class, and that it has not.
BOTH, NEW, LOST = (0, 114, 178), (200, 80, 10), (168, 32, 26)
_SIGNS = {BOTH: "", NEW: "+ ", LOST: "- "}
_OPAQUE = 0.45  # of a mask
_VISIBLE = 0.5  # as a model says of a keypoint
# COCO's lines between its 17 keypoints, from 0.
_PERSON = 17
_LINES = (
    *((15, 13), (13, 11), (16, 14), (14, 12), (11, 12), (5, 11), (6, 12), (5, 6), (5, 7), (6, 8)),
    *((7, 9), (8, 10), (1, 2), (0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 6)),
)


_Sized = tuple["Image.Image", tuple[int, int]]  # and the width and height that it had


@dataclass(frozen=True, kw_only=True)
class PicturesRequest:
    """What is drawn: the evaluation set, and folders of the evaluations that `Evaluation.load` reads.

    Paths in `data` are relative to `folder`. `class_names` None: those that the data have. `score` is
    the smallest one that the recipe asks for. JPEGs go into `out`.
    """

    data: DataSettings
    folder: Path
    inputs: tuple[TensorSpec, ...]
    baseline: Path
    variants: dict[str, Path]
    out: Path
    class_names: tuple[str, ...] | None = None
    score: float = 0.0
    seed: int = 0


@dataclass(frozen=True)
class Marked:
    """A box `(left, top, right, bottom)` in pixels of its image, what is written to it, its colour.

    It may have a mask as COCO's run lengths, keypoints `[k, 2 or 3]`, or corners `[4, 2]`, which are
    drawn in place of the box.
    """

    box: Sequence[float]
    text: str
    colour: tuple[int, int, int] = BOTH
    mask: Mapping[str, Any] | None = None
    keypoints: Sequence[Sequence[float]] | None = None
    corners: Sequence[Sequence[float]] | None = None


@dataclass(frozen=True)
class _Chosen:
    """An image of a variant: what is said of it, and the boxes of the variant and of the baseline."""

    picture: Picture
    mine: tuple[Marked, ...] = ()
    theirs: tuple[Marked, ...] = ()


def may_have(settings: DataSettings) -> bool:
    """Whether pixels may be found in the data. The user's code is not run for them."""
    return settings.kind != "python" and (settings.kind != "npz" or settings.prepare is not None)


def draw(request: PicturesRequest, channel: Channel) -> Pictures:
    """Write the pictures of each variant. What cannot be read or drawn is left out.

    Raises `InputError` for data that cannot be opened.
    """
    chosen = _chosen(request)
    ids = {each.picture.image for of_variant in chosen.values() for each in of_variant}
    images = _images(request, ids) if ids else {}
    shown = {k: [c for c in each if c.picture.image in images] for k, each in chosen.items()}
    for side, quality in _SIZES:
        files = _drawn(shown, images, side, quality)
        if sum(map(len, files.values())) <= MOST_BYTES:
            break
    kept: dict[str, list[Picture]] = {name: [] for name in shown}
    taken: dict[str, bytes] = {}
    # The first of every variant, then the second: where there is no room, the last are left out.
    for place in range(_WORST + _RANDOM):
        for name, of_variant in shown.items():
            if place >= len(of_variant):
                continue
            picture = of_variant[place].picture
            new = {file: files[file] for file in (picture.file, picture.baseline_file)}
            if sum(map(len, {**taken, **new}.values())) <= MOST_BYTES:
                taken |= new
                kept[name].append(picture)
    for file, content in taken.items():
        (request.out / Path(file).name).write_bytes(content)
    return Pictures(variants={name: tuple(each) for name, each in kept.items() if each})


def _chosen(request: PicturesRequest) -> dict[str, list[_Chosen]]:
    """Images of each variant: those that differ most first, then those at random, the same for all."""
    import numpy as np

    baseline = Evaluation.load(request.baseline)
    ids = [str(each) for each in baseline.ids()]
    by_chance = np.random.default_rng(request.seed).permutation(len(ids))[:_RANDOM].tolist()
    names = _Names.of(request)
    chosen: dict[str, list[_Chosen]] = {}
    shared: set[int] = set()
    for name, folder in request.variants.items():
        variant = Evaluation.load(folder)
        if [str(each) for each in variant.ids()] != ids:
            continue
        seen = _Detected.of(variant, baseline, names, request.score) or _Classified.of(
            variant, baseline, names
        )
        if seen is None:
            continue
        differences = [seen.difference(index) for index in range(len(ids))]
        different = [index for index, each in enumerate(differences) if each > 0]
        # Of equal ones those that another variant shows already: their pictures are shared.
        different.sort(key=lambda index: (-differences[index], index not in shared, index))
        worst = different[:_WORST]
        shared |= set(worst)
        chosen[name] = [
            seen.told(index, ids[index], "worst" if index in worst else "random", name)
            for index in dict.fromkeys((*worst, *by_chance))
        ]
    return chosen


class _Names(tuple[str, ...]):
    """The names of the classes, as far as they are known."""

    @classmethod
    def of(cls, request: PicturesRequest) -> _Names:
        try:
            return cls(request.class_names or data.class_names(request.data, request.folder) or ())
        except InputError:
            return cls()

    def of_class(self, label: int) -> str | None:
        return self[label] if 0 <= label < len(self) else None


@dataclass(frozen=True)
class _Detected:
    """The detections of a variant and of the baseline."""

    mine: list[np.ndarray]
    theirs: list[np.ndarray]
    have: tuple[Objects, Objects]
    names: _Names
    confident: float

    @classmethod
    def of(
        cls, variant: Evaluation, baseline: Evaluation, names: _Names, score: float
    ) -> _Detected | None:
        both = detections.of_both(variant, baseline)
        have = (Objects.of(variant), Objects.of(baseline))
        return None if both is None else cls(*both, have, names, max(score, CONFIDENT))

    def difference(self, index: int) -> float:
        own, other, new = detections.matched(self.mine, self.theirs, index, self.confident)
        # NaN is lost.
        return float((own[:, 5] != other[:, 5]).sum() + len(new) + self._moved(own, other))

    def _moved(self, own: np.ndarray, other: np.ndarray) -> int:
        """How many detections are the same, and have another mask, other keypoints or another angle."""
        same = own[:, 5] == other[:, 5]
        return sum(
            objects.differ(*self.have, int(a), int(b), box)
            for a, b, box in zip(own[same, 6], other[same, 6], other[same, :4], strict=True)
        )

    def told(self, index: int, image: str, chosen: str, variant: str) -> _Chosen:
        import numpy as np

        own, other, new = detections.matched(self.mine, self.theirs, index, self.confident)
        lost, same = np.isnan(own[:, 0]), own[:, 5] == other[:, 5]
        counts = {"of": len(other), "lost": lost.sum(), "renamed": (~lost & ~same).sum()}
        counts["moved"] = self._moved(own, other)
        picture = Picture.model_validate(
            {"image": image, "chosen": chosen, "score": self.confident, "new": len(new)}
            | {"file": _file(image, variant), "baseline_file": _file(image, "")}
            | {name: int(count) for name, count in counts.items()}
        )
        ours, base = self.have
        mine = (
            *self._marked(np.concatenate([own[~lost & ~same], new]), NEW, ours),
            *self._marked(other[lost], LOST, base),
            *self._marked(own[same], BOTH, ours),
        )
        return _Chosen(picture, mine, tuple(self._marked(other, BOTH, base)))

    def _marked(
        self, rows: np.ndarray, colour: tuple[int, int, int], have: Objects
    ) -> Iterator[Marked]:
        for row in rows:
            name = self.names.of_class(int(row[5])) or f"class {int(row[5])}"
            text, number = f"{_SIGNS[colour]}{name} {row[4]:.2f}", int(row[6])
            yield Marked(
                row[:4].tolist(),
                text,
                colour,
                *(None if every is None else every[number] for every in vars(have).values()),
            )


@dataclass(frozen=True)
class _Classified:
    """The answers of two classifiers."""

    mine: dict[str, np.ndarray]
    theirs: dict[str, np.ndarray]
    names: _Names

    @classmethod
    def of(cls, variant: Evaluation, baseline: Evaluation, names: _Names) -> _Classified | None:
        wanted = ("predicted", "confidence", "label")
        mine, theirs = (
            {name: array for name in wanted if (array := each.array(name)) is not None}
            for each in (variant, baseline)
        )
        both = "predicted" in mine and "predicted" in theirs
        return cls(mine, theirs, names) if both else None

    def difference(self, index: int) -> float:
        if self.mine["predicted"][index] == self.theirs["predicted"][index]:
            return 0.0
        return float(self.theirs["confidence"][index]) if "confidence" in self.theirs else 1.0

    def told(self, index: int, image: str, chosen: str, variant: str) -> _Chosen:
        file = _file(image, "")
        answers: dict[str, Answer | None] = {
            "answer": self._answer(self.mine, "predicted", index),
            "baseline_answer": self._answer(self.theirs, "predicted", index),
            "target": self._answer(self.theirs, "label", index) if "label" in self.theirs else None,
        }
        about = {"image": image, "chosen": chosen, "file": file, "baseline_file": file, **answers}
        return _Chosen(Picture.model_validate(about))

    def _answer(self, arrays: Mapping[str, np.ndarray], which: str, index: int) -> Answer:
        label = int(arrays[which][index])
        surely = float(arrays["confidence"][index]) if "confidence" in arrays else None
        name = self.names.of_class(label)
        return Answer(label=label, name=name, confidence=surely if which == "predicted" else None)


def _file(image: str, variant: str) -> str:
    """The file of an image with the answers of a variant, of the baseline where that is empty."""
    return f"{FOLDER}/{hashlib.sha256(f'{image} {variant}'.encode()).hexdigest()[:16]}.jpg"


def _images(request: PicturesRequest, ids: set[str]) -> dict[str, _Sized]:
    """Those of the images that can be read, as RGB and turned as the preparation turns them."""
    from PIL import Image

    from optcli.data import steps

    settings, found = request.data, dict[str, _Sized]()
    prepare = settings.prepare or Preparation()
    plain = Preparation(orient=prepare.orient, channel_order="rgb")
    samples = data.open(settings.model_copy(update={"prepare": None}), request.folder, request.inputs)
    names = [str(each) for each in Evaluation.load(request.baseline).ids()]
    for index in (index for index, name in enumerate(names) if name in ids):
        try:
            item = samples.read(index)
            value: Any = item.raw[settings.input] if settings.input else next(iter(item.raw.values()))
            if hasattr(value, "mode"):
                pixels = steps.decoded(value, plain)
            elif value.dtype == "uint8":
                pixels = steps.from_array(value, prepare.array_layout)[:, :, :3]
            else:  # of which nobody knows what is black and white
                continue
        except (InputError, IndexError):  # or what has been changed since
            continue
        if item.id == names[index]:
            flat = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
            image = Image.fromarray(flat.copy()).convert("RGB")
            size = image.size
            image.thumbnail((_KEPT, _KEPT))
            found[item.id] = image, size
    return found


def _drawn(
    shown: Mapping[str, Sequence[_Chosen]], images: Mapping[str, _Sized], side: int, quality: int
) -> dict[str, bytes]:
    """All pictures by file; each is drawn once, also where several variants show it."""
    files: dict[str, bytes] = {}
    for each in (each for of_variant in shown.values() for each in of_variant):
        picture = each.picture
        for file, marked in ((picture.baseline_file, each.theirs), (picture.file, each.mine)):
            if file not in files:
                image, original = images[picture.image]
                files[file] = jpeg(image, marked, side, quality, original=original)
    return files


def jpeg(
    image: Image.Image,
    marked: Sequence[Marked],
    side: int,
    quality: int,
    lines: Sequence[str] = (),
    original: tuple[int, int] | None = None,
) -> bytes:
    """An RGB image with boxes as a JPEG, its longest side `side` pixels; `lines` stand below it.

    A tiny image is enlarged by a whole number, to half of that at most. `original` is the width and
    height of the image that boxes are for, where it is not this one.
    """
    from PIL import Image, ImageDraw, ImageFont

    longest = max(image.size)
    larger = side // 2 // longest
    scale = larger if larger > 1 else min(1.0, side / longest)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    filtered = Image.Resampling.BILINEAR if scale < 1 else Image.Resampling.NEAREST
    font = ImageFont.load_default(10 if side < _SIZES[0][0] else 11)
    line = 15
    shown = Image.new("RGB", (size[0], size[1] + line * len(lines)), "white")
    shown.paste(image.resize(size, filtered))
    of = original or image.size
    for each in reversed(marked):
        if each.mask is not None and each.mask["size"] == [of[1], of[0]]:
            shown.paste(each.colour, (0, 0), _veil(each.mask, size))
    pen = ImageDraw.Draw(shown)
    # Names last, so that no box crosses them; the first one on top.
    ordered = [(_scaled(each.box, size, of), each) for each in reversed(marked)]
    for box, each in ordered:
        if each.corners is None:
            pen.rectangle(box, outline=each.colour, width=2)
        else:
            pen.polygon(_points(each.corners, size, of), outline=each.colour, width=2)
        _draw_keypoints(pen, each, size, of)
    for (left, top, *_), each in ordered:
        text = _written(each.text)
        width = pen.textlength(text, font)
        x, y = max(0.0, min(left, size[0] - width - 4)), top - 13 if top >= 13 else top
        pen.rectangle((x, y, x + width + 4, y + 13), fill=each.colour)
        pen.text((x + 2, y), text, "white", font)
    for number, text in enumerate(lines):
        pen.text((3, size[1] + 1 + line * number), _written(text), "black", font)
    content = io.BytesIO()
    shown.save(content, "JPEG", quality=quality, optimize=True)
    return content.getvalue()


def _veil(mask: Mapping[str, Any], size: tuple[int, int]) -> Image.Image:
    """How opaque the colour of a mask is in each pixel of the picture."""
    from PIL import Image
    from pycocotools import mask as library

    opaque = (library.decode(dict(mask)) * round(255 * _OPAQUE)).astype("uint8")
    return Image.fromarray(opaque).resize(size, Image.Resampling.BILINEAR)


def _points(
    points: Sequence[Sequence[float]], size: tuple[int, int], original: tuple[int, int]
) -> list[tuple[float, float]]:
    """Points in pixels of the picture, not far outside of it."""
    return [
        tuple(  # type: ignore[misc]
            min(2.0 * side, max(-1.0 * side, float(value) * side / whole))
            for value, side, whole in zip(point, size, original, strict=False)
        )
        for point in points
    ]


def _draw_keypoints(
    pen: ImageDraw.ImageDraw, each: Marked, size: tuple[int, int], original: tuple[int, int]
) -> None:
    """The keypoints that are visible as dots; COCO's of a person with lines between them."""
    keypoints = () if each.keypoints is None else each.keypoints
    points = _points(keypoints, size, original)
    seen = [len(point) < 3 or point[2] >= _VISIBLE for point in keypoints]
    for first, second in _LINES if len(points) == _PERSON else ():
        if seen[first] and seen[second]:
            pen.line((points[first], points[second]), fill=each.colour, width=2)
    for (x, y), is_seen in zip(points, seen, strict=True):
        if is_seen:
            pen.ellipse((x - 2, y - 2, x + 2, y + 2), fill="white", outline=each.colour)


def _scaled(
    box: Sequence[float], size: tuple[int, int], original: tuple[int, int]
) -> tuple[float, float, float, float]:
    """A box in pixels of the picture, its corners in order and inside."""
    ends = [min(size[i % 2] - 1.0, max(0.0, box[i] * size[i % 2] / original[i % 2])) for i in range(4)]
    (left, right), (top, bottom) = sorted(ends[::2]), sorted(ends[1::2])
    return left, top, right, bottom


def _written(text: str) -> str:
    """A text as far as Pillow's own font can write it."""
    return text.encode("latin-1", "replace").decode("latin-1")
