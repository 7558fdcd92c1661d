"""Images with the class of each pixel: `masks:PATH`, a folder of images beside one of masks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from optcli.data.collection import Collection, Finding, RawSample, RawSamples
from optcli.data.image_files import folders_in, id_of, is_image, open_image, size_of
from optcli.data.selection import choose, split_digest
from optcli.errors import counted, did_you_mean, excerpt, plural
from optcli.files import regular_files
from optcli.files.digest import FileDigests, of_file, of_value
from optcli.settings import TensorSpec

_IMAGES = ("images", "image", "imgs", "img", "jpegimages", "inputs", "rgb", "leftimg8bit")
_MASKS = (
    *("masks", "mask", "labels", "label", "annotations", "annotation", "segmentationclass", "annots"),
    *("segmentation", "segmentations", "targets", "gt", "gtfine", "ground_truth"),
)
_PARTS = (
    *("train", "training", "calibration", "calib"),
    *("val", "valid", "validation", "test", "evaluation"),
)
_WANTED = "wanted folders such as images and masks, with files of the same names"


@dataclass(frozen=True)
class MaskedImages:
    """Two folders, the images in one that have a mask in the other, and how many have none."""

    images: Path
    masks: Path
    paired: tuple[tuple[Path, Path], ...]
    without: int


class Masks(Collection):
    """Images, each with a mask of the same name: `images/a.jpg` and `masks/a.png`.

    The folders may have other usual names, such as `JPEGImages` and `SegmentationClass`; `root` names
    that of the masks, and the path is the folder of the images then. Masks' names may end otherwise:
    `a_mask.png`. `split: train` reads the folders of that name, in the two or around them. A target is
    what the mask holds, [height, width]: numbers, indices of a palette too. Of masks in colours it is
    [height, width, 3], which `labels: {colours: [[0, 0, 0], [128, 0, 0]]}` numbers. Maps of depth in 16
    bits are read as well. Images without a mask are left out, and the report says how many.
    """

    of_pixels = True

    @classmethod
    def recognises(cls, path: Path) -> bool:
        return any(pairs.paired for _, pairs in _collections(path))

    def parts(self) -> Sequence[str]:
        return [name for name, _ in self._collections if name]

    def count(self) -> int:
        return len(self._pairs.paired)

    def masks(self) -> list[Path]:
        """The masks of all parts."""
        return [mask for _, pairs in self._collections for _, mask in pairs.paired]

    def problems(self) -> list[Finding]:
        if not regular_files.is_folder(self.path):
            return [("source", f"no such folder: {excerpt(self.settings.place)}", _WANTED)]
        if not self._collections:
            return [("source", f"no images with masks in {excerpt(self.settings.place)}", _WANTED)]
        if self.part not in dict(self._collections):
            parts = self.parts()
            named = f"the parts {', '.join(parts)}" if parts else "no parts"
            hint = did_you_mean(self.part, parts) if self.part else f"split: {parts[0]}"
            return [("split", f"the data have {named}", hint or "remove split")]
        return []

    def ingredients(self, digests: FileDigests) -> dict[str, Any]:
        marks = [[name, digests.of(image), digests.of(mask)] for name, image, mask in self.chosen]
        return {
            "count": len(marks),
            "files": of_value(marks),
            "split": split_digest(self.settings, self.folder, digests.of),
        }

    def listed(self) -> Iterator[Path]:
        return (file for pair in self._pairs.paired for file in pair)

    def open(self, inputs: Sequence[TensorSpec]) -> RawSamples:
        hint = "use python:FILE.py:CALLABLE, which can feed several"
        return MaskItems(self.only_input(inputs, "a folder of images", hint), self.chosen)

    def remarks(self, orient: bool) -> list[str]:
        remarks = []
        if without := self._pairs.without:
            phrase = "image has no mask, and is", "images have no mask, and are"
            remarks.append(f"{counted(without, *phrase)} left out")
        other = sum(
            size_of(image, oriented=orient) != size_of(mask, oriented=False)
            for _, image, mask in self.chosen
        )
        if other:
            remarks.append(
                f"{other} of {counted(len(self.chosen), 'mask')}"
                f" {plural(other, 'has another size than its', 'have another size than their')} image:"
                " it was resized or turned after it was annotated"
            )
        return remarks

    @cached_property
    def chosen(self) -> list[tuple[str, Path, Path]]:
        """The chosen images: id, file and mask. Raises `InputError`."""
        pairs = self._pairs
        ids = [id_of(image.name) for image, _ in pairs.paired]
        return [(ids[n], *pairs.paired[n]) for n in choose(self.settings, self.folder, ids)]

    @property
    def _pairs(self) -> MaskedImages:
        self.require()
        return dict(self._collections)[self.part]

    @cached_property
    def _collections(self) -> list[tuple[str | None, MaskedImages]]:
        if self.settings.root is None:
            return list(_collections(self.path))
        masks = self.folder / regular_files.expanded(self.settings.root)
        return list(_parts(self.path, masks))


class MaskItems(RawSamples):
    """The chosen images with their masks, opened one at a time."""

    parallel: ClassVar[bool] = True

    def __init__(self, name: str, chosen: Sequence[tuple[str, Path, Path]]) -> None:
        self._name, self._chosen = name, chosen

    def __len__(self) -> int:
        return len(self._chosen)

    def read(self, index: int) -> RawSample:
        name, image, mask = self._chosen[index]
        return RawSample(name, str(image), {self._name: open_image(str(image))}, values_of(mask))

    def identity(self, index: int) -> tuple[str, str]:
        name, image, _ = self._chosen[index]
        return name, of_file(image)


def values_of(mask: Path) -> Any:
    """The number of each pixel, [height, width], or its colour, [height, width, 3].

    Indices of a palette are numbers, and so are greys in three channels. Raises `InputError`.
    """
    import numpy as np

    image = open_image(str(mask))
    if len(image.getbands()) == 1:
        values = np.asarray(image)
        return values.astype(np.uint8) if values.dtype == bool else values
    colours = np.asarray(image.convert("RGB"))
    is_grey = (colours[:, :, :1] == colours).all()
    return colours[:, :, 0] if is_grey else colours


def _collections(path: Path) -> Iterator[tuple[str | None, MaskedImages]]:
    """The pairs in a folder, with the names of their parts; None where there is one whole."""
    inner = _two_folders(path)
    if inner is not None:
        yield from _parts(*inner)
        return
    for name in folders_in(path) if regular_files.is_folder(path) else []:
        if name.lower() in _PARTS and (below := _two_folders(path / name)):
            pairs = _paired(*below)
            if pairs.paired:
                yield name, pairs


def _parts(images: Path, masks: Path) -> Iterator[tuple[str | None, MaskedImages]]:
    """The pairs of two folders, or those of the parts in both."""
    whole = _paired(images, masks)
    if whole.paired:
        yield None, whole
        return
    there = set(folders_in(masks)) if regular_files.is_folder(masks) else set()
    for name in folders_in(images) if regular_files.is_folder(images) else []:
        if name in there and (pairs := _paired(images / name, masks / name)).paired:
            yield name, pairs


def _two_folders(folder: Path) -> tuple[Path, Path] | None:
    """The folder of the images and that of the masks, by their names."""
    names = {name.lower(): folder / name for name in folders_in(folder)} if folder.is_dir() else {}
    images = next((names[name] for name in _IMAGES if name in names), None)
    masks = next((names[name] for name in _MASKS if name in names), None)
    return None if images is None or masks is None else (images, masks)


def _paired(images: Path, masks: Path) -> MaskedImages:
    """The images that have a mask; names of masks end all alike behind those of their images."""
    files = [images / name for name in sorted(regular_files.names_in(images)) if is_image(name)]
    names = sorted(regular_files.names_in(masks))
    stems = {Path(name).stem: masks / name for name in names if is_image(name)}
    own = {file.stem for file in files}
    endings = set()
    for stem in list(stems)[:5]:
        # What follows the longest name of an image that the mask's name begins with.
        begins = max((name for name in own if stem.startswith(name)), key=len, default=stem)
        endings.add(stem.removeprefix(begins))
    for ending in ("", *sorted(endings - {""})):
        paired = tuple((f, stems[f.stem + ending]) for f in files if f.stem + ending in stems)
        if paired:
            return MaskedImages(images, masks, paired, len(files) - len(paired))
    return MaskedImages(images, masks, (), len(files))
