"""Evaluation images with what a variant and the baseline answered: which, and how they are drawn."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli import data
from optcli.accuracy import detections, objects
from optcli.accuracy.differences import paired
from optcli.accuracy.drawing import BOTH, LOST, NEW, DrawnBox, colours_of, jpeg, names_in
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
    from PIL import Image

# All pictures of a page. In base64, as a page holds them, they take 300 kB.
MOST_BYTES = 225_000
_WORST, _RANDOM = 3, 2
# The longest side in pixels and the quality of JPEG: the first at which all pictures are small enough.
_SIZES = ((320, 80), (320, 60), (320, 40), (224, 45), (160, 40))
# In memory, where photographs have a hundred times as many pixels.
_MOST_SIDE = 2 * _SIZES[0][0]
_SIGNS = {BOTH: "", NEW: "+ ", LOST: "- "}
_MAP_DIMENSIONS = 3  # of the scores of a map's classes, for one image


_Sized = tuple["Image.Image", tuple[int, int]]  # and the width and height that it had


@dataclass(frozen=True, kw_only=True)
class PicturesRequest:
    """What is drawn: the evaluation set, and folders of the evaluations that `Evaluation.load` reads.

    Paths in `data` are relative to `folder`. `class_names` None: those that the data have. `score` is
    the smallest one that the recipe asks for, `class_map` the output that is a map of classes, where
    there is one. JPEGs go into `out`.
    """

    data: DataSettings
    folder: Path
    inputs: tuple[TensorSpec, ...]
    baseline: Path
    variants: dict[str, Path]
    out: Path
    class_names: tuple[str, ...] | None = None
    score: float = 0.0
    class_map: str | None = None
    seed: int = 0


@dataclass(frozen=True)
class _Chosen:
    """An image of a variant: what is said of it, and the boxes of the variant and of the baseline.

    `maps` are drawn in place of the image: the variant's classes and the baseline's, by pixel.
    """

    picture: Picture
    candidate: tuple[DrawnBox, ...] = ()
    reference: tuple[DrawnBox, ...] = ()
    maps: tuple[np.ndarray, np.ndarray] | None = None


def may_have(settings: DataSettings) -> bool:
    """Whether pixels may be found in the data. The user's code is not run for them."""
    return not settings.runs_code and not settings.holds_inputs


def draw(request: PicturesRequest, channel: Channel) -> Pictures:
    """Write the pictures of each variant. What cannot be read or drawn is left out.

    Raises `InputError` for data that cannot be opened.
    """
    chosen = _chosen(request)
    ids = {c.picture.image for each in chosen.values() for c in each if c.maps is None}
    images = _images(request, ids) if ids else {}
    shown = {
        name: [c for c in each if c.maps is not None or c.picture.image in images]
        for name, each in chosen.items()
    }
    for side, quality in _SIZES:
        files = _drawn(shown, images, side, quality)
        if sum(map(len, files.values())) <= MOST_BYTES:
            break
    pictures: dict[str, list[Picture]] = {name: [] for name in shown}
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
                pictures[name].append(picture)
    for file, content in taken.items():
        (request.out / Path(file).name).write_bytes(content)
    return Pictures(variants={name: tuple(each) for name, each in pictures.items() if each})


def _chosen(request: PicturesRequest) -> dict[str, list[_Chosen]]:
    """Images of each variant: those that differ most first, then those at random, the same for all."""
    import numpy as np

    baseline = Evaluation.load(request.baseline)
    ids = [str(each) for each in baseline.ids()]
    by_chance = np.random.default_rng(request.seed).permutation(len(ids)).tolist()
    names = _Names.of(request)
    chosen: dict[str, list[_Chosen]] = {}
    shared: set[int] = set()
    for name, folder in request.variants.items():
        variant = Evaluation.load(folder)
        if [str(each) for each in variant.ids()] != ids:
            continue
        seen = (
            _Mapped.of(variant, baseline, names, request.class_map)
            or _Detected.of(variant, baseline, names, request.score)
            or _Classified.of(variant, baseline, names)
        )
        if seen is None:
            continue
        looked_at = range(len(seen.candidate) if isinstance(seen, _Mapped) else len(ids))
        differences = [seen.difference(index) for index in looked_at]
        different = [index for index in looked_at if differences[index] > 0]
        # Of equal ones those that another variant shows already: their pictures are shared.
        different.sort(key=lambda index: (-differences[index], index not in shared, index))
        worst = different[:_WORST]
        shared |= set(worst)
        chosen[name] = [
            seen.chosen(index, ids[index], "worst" if index in worst else "random", name)
            for index in dict.fromkeys((*worst, *[i for i in by_chance if i in looked_at][:_RANDOM]))
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

    def text_of(self, label: int) -> str:
        return self.of_class(label) or f"class {label}"


@dataclass(frozen=True)
class _Detected:
    """The detections of a variant and of the baseline."""

    candidate: list[np.ndarray]
    reference: list[np.ndarray]
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
        own, other, new = detections.matched(self.candidate, self.reference, index, self.confident)
        # NaN is lost.
        return float((own[:, 5] != other[:, 5]).sum() + len(new) + self._moved(own, other))

    def _moved(self, own: np.ndarray, other: np.ndarray) -> int:
        """How many detections are the same, and have another mask, other keypoints or another angle."""
        same = own[:, 5] == other[:, 5]
        return sum(
            objects.differ(*self.have, int(a), int(b), box)
            for a, b, box in zip(own[same, 6], other[same, 6], other[same, :4], strict=True)
        )

    def chosen(self, index: int, image: str, chosen: str, variant: str) -> _Chosen:
        import numpy as np

        own, other, new = detections.matched(self.candidate, self.reference, index, self.confident)
        lost, same = np.isnan(own[:, 0]), own[:, 5] == other[:, 5]
        counts = {"of": len(other), "lost": lost.sum(), "renamed": (~lost & ~same).sum()}
        counts["moved"] = self._moved(own, other)
        picture = Picture.model_validate(
            {"image": image, "chosen": chosen, "score": self.confident, "new": len(new)}
            | {"file": _file(image, variant), "baseline_file": _file(image, "")}
            | {name: int(count) for name, count in counts.items()}
        )
        ours, base = self.have
        candidate = (
            *self._marked(np.concatenate([own[~lost & ~same], new]), NEW, ours),
            *self._marked(other[lost], LOST, base),
            *self._marked(own[same], BOTH, ours),
        )
        return _Chosen(picture, candidate, tuple(self._marked(other, BOTH, base)))

    def _marked(
        self, rows: np.ndarray, colour: tuple[int, int, int], have: Objects
    ) -> Iterator[DrawnBox]:
        for row in rows:
            name, number = self.names.text_of(int(row[5])), int(row[6])
            text = f"{_SIGNS[colour]}{name} {row[4]:.2f}"
            yield DrawnBox(
                row[:4].tolist(),
                text,
                colour,
                *(None if every is None else every[number] for every in vars(have).values()),
            )


@dataclass(frozen=True)
class _Mapped:
    """The maps of classes `[images, height, width]` of the first images, whose outputs are kept.

    They have at most as many pixels a side as a picture.
    """

    candidate: np.ndarray
    reference: np.ndarray
    names: _Names

    @classmethod
    def of(
        cls, variant: Evaluation, baseline: Evaluation, names: _Names, output: str | None
    ) -> _Mapped | None:
        for candidate, reference in paired(variant.outputs, baseline.outputs):
            if reference.name == output and candidate.file is not None and reference.file is not None:
                both = _classes_of(variant.rows(candidate)), _classes_of(baseline.rows(reference))
                return cls(*both, names) if both[0].shape == both[1].shape else None
        return None

    def difference(self, index: int) -> float:
        return float((self.candidate[index] != self.reference[index]).mean())

    def chosen(self, index: int, image: str, chosen: str, variant: str) -> _Chosen:
        maps = self.candidate[index], self.reference[index]
        files = {"file": _file(image, variant), "baseline_file": _file(image, "")}
        about = {"image": image, "chosen": chosen, **files, "changed": self.difference(index)}
        candidate, reference = (tuple(names_in(each, self.names.text_of)) for each in maps)
        return _Chosen(Picture.model_validate(about), candidate, reference, maps)


def _classes_of(rows: np.ndarray) -> np.ndarray:
    """Class numbers `[images, height, width]` of scores of classes, or of one class, or of numbers."""
    import numpy as np

    step = max(1, -(-max(rows.shape[-2:]) // _SIZES[0][0]))
    few = rows[..., ::step, ::step]
    if few.ndim <= _MAP_DIMENSIONS:
        return np.round(few).astype(int)
    if few.shape[1] > 1:
        return np.stack([row.argmax(axis=0) for row in few])
    one = few[:, 0]
    if (one == np.round(one)).all():
        return one.astype(int)
    shares = one.min() >= 0 and one.max() <= 1
    return (one > (0.5 if shares else 0)).astype(int)


@dataclass(frozen=True)
class _Classified:
    """The answers of two classifiers."""

    candidate: dict[str, np.ndarray]
    reference: dict[str, np.ndarray]
    names: _Names

    @classmethod
    def of(cls, variant: Evaluation, baseline: Evaluation, names: _Names) -> _Classified | None:
        wanted = ("predicted", "confidence", "label")
        candidate, reference = (
            {name: array for name in wanted if (array := each.array(name)) is not None}
            for each in (variant, baseline)
        )
        both = "predicted" in candidate and "predicted" in reference
        return cls(candidate, reference, names) if both else None

    def difference(self, index: int) -> float:
        if self.candidate["predicted"][index] == self.reference["predicted"][index]:
            return 0.0
        return float(self.reference["confidence"][index]) if "confidence" in self.reference else 1.0

    def chosen(self, index: int, image: str, chosen: str, variant: str) -> _Chosen:
        file = _file(image, "")
        answers: dict[str, Answer | None] = {
            "answer": self._answer(self.candidate, "predicted", index),
            "baseline_answer": self._answer(self.reference, "predicted", index),
            "target": self._answer(self.reference, "label", index)
            if "label" in self.reference
            else None,
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

    settings, sized = request.data, dict[str, _Sized]()
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
            image.thumbnail((_MOST_SIDE, _MOST_SIDE))
            sized[item.id] = image, size
    return sized


def _drawn(
    shown: Mapping[str, Sequence[_Chosen]], images: Mapping[str, _Sized], side: int, quality: int
) -> dict[str, bytes]:
    """All pictures by file; each is drawn once, also where several variants show it."""
    files: dict[str, bytes] = {}
    for each in (each for of_variant in shown.values() for each in of_variant):
        picture = each.picture
        sides = ((picture.baseline_file, each.reference, 1), (picture.file, each.candidate, 0))
        for file, marked, place in sides:
            if file not in files and each.maps is not None:
                shown_map = each.maps[place]
                size = shown_map.shape[1], shown_map.shape[0]
                files[file] = jpeg(colours_of(shown_map, side), marked, side, quality, original=size)
            elif file not in files:
                image, size = images[picture.image]
                files[file] = jpeg(image, marked, side, quality, original=size)
    return files
