"""Labels as the model numbers its classes: what `labels` and `class_names` of a recipe say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from optcli.data.collection import RawSample, RawSamples
from optcli.errors import InputError, did_you_mean, excerpt
from optcli.files import regular_files
from optcli.settings.labels import LabelSettings

if TYPE_CHECKING:
    import numpy as np

# The value of pixels that do not count, as torchvision's and `miou`'s own.
IGNORED_PIXEL = 255
_PACKED = (1 << 16, 1 << 8, 1)  # red, green and blue as one number
# What a target of a detector holds for each of its boxes.
_OF_EACH_BOX = ("boxes", "category_ids", "areas", "crowd", "segmentation", "keypoints", "corners")


def with_map(settings: LabelSettings, folder: Path) -> LabelSettings:
    """The settings with the mapping of a file in place of its path. Raises `InputError`."""
    if not isinstance(settings.map, str):
        return settings
    path = folder / regular_files.expanded(settings.map)
    hint = "wanted a mapping in YAML or JSON: the class of the data, and the model's number or name"
    try:
        content = yaml.safe_load(regular_files.read(path).decode("utf-8-sig"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"the map of labels cannot be read: {excerpt(reason, 200)}", place=str(path), hint=hint
        ) from error
    sound = isinstance(content, dict) and all(
        isinstance(value, int | str) and not isinstance(value, bool) for value in content.values()
    )
    if not sound:
        raise InputError("this is no map of labels", place=str(path), hint=hint)
    return settings.model_copy(update={"map": {str(key): value for key, value in content.items()}})


class Labels:
    """The class number of the model for each label of a source.

    `names` are the source's own class names, that of its label 0 first; `ids` are the numbers that the
    source has for them, such as COCO's category ids. Raises `InputError` where the settings name a
    class that is not there.
    """

    def __init__(
        self, settings: LabelSettings, names: Sequence[str] | None, ids: Sequence[int] = ()
    ) -> None:
        self._settings = settings
        self._own = {name: number for number, name in enumerate(names or ())}
        self._ids = {number: label for label, number in enumerate(ids)}
        self._first = dict(enumerate(ids)) if settings.numbering == "ids" else {}
        assert not isinstance(settings.map, str)
        self._map = {self._label(key): self._number(value) for key, value in settings.map.items()}
        self._ignored = {self._label(str(key)) for key in settings.ignore}

    def of(self, label: int) -> int | None:
        """The number of a label; None: it does not count."""
        if label in self._ignored:
            return None
        return self._map.get(label, self._first.get(label, label) + self._settings.offset)

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the model's classes, as far as the settings and the source tell; else None."""
        if self._settings.classes is not None:
            return self._settings.classes
        if not self._own or self._settings.map:
            return None
        named = {self.of(label): name for name, label in self._own.items()}
        count = max((number for number in named if number is not None), default=-1) + 1
        return tuple(named.get(number, f"class {number}") for number in range(count)) or None

    def target(self, target: Any) -> Any:
        """A target with the model's numbers; None for a sample whose class does not count."""
        import numpy as np

        if isinstance(target, Mapping) and "labels" in target:
            return self._of_boxes(target)
        if isinstance(target, np.ndarray) and target.ndim > 1 and target.dtype.kind in "iub":
            return self._of_pixels(self._uncoloured(target))
        if isinstance(target, np.ndarray) and target.size == 1 and target.dtype.kind in "iu":
            target = target.item()
        if isinstance(target, int | np.integer) and not isinstance(target, bool):
            return self.of(int(target))
        if isinstance(target, list | tuple) or (isinstance(target, np.ndarray) and target.ndim == 1):
            return self._of_several(target)
        return target

    def _of_several(self, target: Any) -> Any:
        """Several classes of an image: `labels` that are there, and of 0 and 1 the `absent` ones too.

        Raises `InputError` for what may be both 0 and 1 for each class and a list of numbers.
        """
        import numpy as np

        row = np.asarray(target)
        if row.ndim != 1 or row.dtype.kind not in "iubf" or not np.array_equal(row, np.rint(row)):
            return target
        numbers = row.astype(np.int64).tolist()
        while numbers and numbers[-1] == -1:  # they fill a table up
            numbers.pop()
        is_list = len({*numbers}) == len(numbers) and min(numbers, default=0) >= 0
        is_hot = bool(np.isin(row, (-1, 0, 1)).all()) and len(row) == (len(self._own) or len(row))
        if is_hot and is_list and not self._own:
            raise InputError(
                f"the label {row.tolist()} is both 0 or 1 for each class and a list of numbers",
                place="labels",
                hint="python:FILE.py:CALLABLE may give {labels: [numbers]} as a target",
            )
        if not is_hot:
            numbers_here = [self.of(number) for number in numbers]
            return {"labels": np.array([each for each in numbers_here if each is not None], np.int64)}
        rows_of: dict[int, list[int]] = {}
        for label, value in enumerate(row.astype(np.int64).tolist()):
            if (number := self.of(label)) is not None:
                rows_of.setdefault(number, []).append(value)
        there = [number for number, values in rows_of.items() if 1 in values]
        absent = [number for number, values in rows_of.items() if {*values} == {0}]
        return {"labels": np.array(there, np.int64), "absent": np.array(absent, np.int64)}

    def _of_boxes(self, target: Mapping[str, Any]) -> dict[str, Any]:
        """Detections without the boxes that do not count."""
        import numpy as np

        numbers = [self.of(int(label)) for label in target["labels"]]
        counts = np.array([number is not None for number in numbers], bool)
        changed = {
            name: value[counts]
            if isinstance(value := target[name], np.ndarray)
            else [each for each, stays in zip(value, counts, strict=True) if stays]
            for name in _OF_EACH_BOX
            if name in target
        }
        known = np.array([number for number in numbers if number is not None], np.int64)
        return {**target, **changed, "labels": known}

    def _uncoloured(self, mask: np.ndarray) -> np.ndarray:
        """The number of each pixel's colour; one value a pixel is a grey. Raises `InputError`."""
        import numpy as np

        colours = self._settings.colours
        if not colours or not (mask.ndim == 2 or mask.shape[2:] == (3,)):
            return mask
        levels = np.broadcast_to(mask.reshape(*mask.shape[:2], -1), (*mask.shape[:2], 3)).astype(
            np.int64
        )
        packed = levels @ _PACKED
        known = np.array(colours) @ _PACKED
        order = np.argsort(known, kind="stable")
        places = np.minimum(np.searchsorted(known, packed, sorter=order), len(known) - 1)
        numbers: np.ndarray = order[places]
        other = known[numbers] != packed
        if other.any():
            raise InputError(
                f"a mask has the colour {levels[other][0].tolist()}, which is none of `labels.colours`",
                place="labels.colours",
                hint="add it; a class that does not count is listed too, and named in labels.ignore",
            )
        return numbers

    def _of_pixels(self, mask: np.ndarray) -> np.ndarray:
        import numpy as np

        values, places = np.unique(mask, return_inverse=True)
        numbers = [self.of(int(value)) for value in values.tolist()]
        # What is ignored already stays so, whatever is added to the classes.
        table = [
            IGNORED_PIXEL
            if number is None or (value == IGNORED_PIXEL and value not in self._map)
            else number
            for value, number in zip(values.tolist(), numbers, strict=True)
        ]
        mapped: np.ndarray = np.array(table, np.int64)[places].reshape(mask.shape)
        return mapped

    def _label(self, key: str) -> int:
        """The label that a key of the settings means: a class name of the source, or its number."""
        if key in self._own:
            return self._own[key]
        text = key.removeprefix("-")
        if text.isdecimal() and len(text) < 19 and (not self._ids or int(key) in self._ids):
            return self._ids.get(int(key), int(key))
        raise InputError(
            f"labels: the data have no class {excerpt(key)!r}",
            place="labels",
            hint=did_you_mean(key, [*self._own]) or "the data have numbers and no names: write those",
        )

    def _number(self, value: int | str) -> int:
        if isinstance(value, int):
            return value
        classes = self._settings.classes or ()
        if classes.count(value) == 1:
            return classes.index(value)
        what = "two classes" if value in classes else "no class"
        raise InputError(
            f"labels: the model has {what} {excerpt(value)!r}",
            place="labels.map",
            hint=did_you_mean(value, classes, "write the number, or name the model's `classes`"),
        )


class LabelledItems(RawSamples):
    """Items whose targets have the model's numbers, without those whose class does not count."""

    def __init__(self, items: RawSamples, labels: Labels) -> None:
        self._items, self._labels = items, labels
        self.parallel = items.parallel  # type: ignore[misc]

    @cached_property
    def _places(self) -> Sequence[int]:
        """The positions of the items that count, as far as the source tells without reading them."""
        targets = self._items.targets()
        if targets is None:
            return range(len(self._items))
        return [
            position
            for position, (place, target) in enumerate(targets)
            if target is None or self._target(place, target) is not None
        ]

    def _target(self, place: str, target: Any) -> Any:
        """A target with the model's numbers. Raises `InputError` that names the sample."""
        try:
            return None if target is None else self._labels.target(target)
        except InputError as error:
            raise InputError(error.message, place=place, hint=error.hint) from error

    def __len__(self) -> int:
        return len(self._places)

    def read(self, index: int) -> RawSample:
        item = self._items.read(self._places[index])
        target = self._target(item.place, item.target)
        if target is None and item.target is not None:
            raise InputError(
                f"the sample has the class {item.target}, which `labels` ignores",
                place=item.place,
                hint="leave such samples out where the data are read: their labels are known too late",
            )
        return RawSample(item.id, item.place, item.raw, target, item.meta)

    def targets(self) -> Iterator[tuple[str, Any]] | None:
        targets = self._items.targets()
        if targets is None:
            return None
        mapped = ((place, self._target(place, target)) for place, target in targets)
        places = set(self._places)
        return (pair for position, pair in enumerate(mapped) if position in places)

    def identity(self, index: int) -> tuple[str, str]:
        return self._items.identity(self._places[index])


def class_names_in(folder: Path, file: str) -> tuple[str, ...]:
    """The lines of a text file. Raises `InputError`."""
    path = folder / regular_files.expanded(file)
    hint = "write one name a line, that of label 0 first, in UTF-8"
    try:
        lines = regular_files.read(path).decode("utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"cannot be read: {excerpt(reason, 200)}", place=str(path), hint=hint
        ) from error
    while lines and not lines[-1].strip():
        lines.pop()
    empty = next((number for number, line in enumerate(lines, 1) if not line.strip()), None)
    if empty is not None or not lines:
        message = f"line {empty} is empty" if empty else "the file is empty"
        raise InputError(message, place=str(path), hint=hint)
    return tuple(line.strip() for line in lines)
