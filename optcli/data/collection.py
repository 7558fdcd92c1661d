"""What every kind of data source gives: its problems, its ingredients and its raw items."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from optcli.data.settings import DataSettings
from optcli.environment import Needs
from optcli.errors import InputError
from optcli.files import regular_files
from optcli.files.digest import FileDigests
from optcli.settings import TensorSpec

Finding = tuple[str, str, str]
"""A field of `DataSettings` (dotted), what is wrong with it, and a hint."""


@dataclass(frozen=True)
class RawSample:
    """One sample before preparation.

    `raw` maps an input's name to an array or to a PIL image; `place` is what an error names; `meta` is
    what a metric may want to know of it.
    """

    id: str
    place: str
    raw: Mapping[str, Any]
    target: Any = None
    meta: Mapping[str, Any] = field(default_factory=dict)


class RawSamples(ABC):
    """The chosen items of a source, read one at a time.

    `parallel` says that several threads may read at once.
    """

    parallel: ClassVar[bool] = False

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read(self, index: int) -> RawSample:
        """One item. Raises `InputError` where it cannot be read."""

    def targets(self) -> Iterator[tuple[str, Any]] | None:
        """The place and target of every item; None where only reading the samples tells them."""
        return None

    @abstractmethod
    def identity(self, index: int) -> tuple[str, str]:
        """The id of an item and the digest of its content, whatever its name and label."""


@dataclass(frozen=True)
class Collection(ABC):
    """A data source as a recipe names it. Subclasses: one per file of `layouts`, named by its kind.

    `reads` says what stands behind the colon of `source`: a path, the user's code, or a name. `holds`
    says what a sample is: an image, an array, which may be an input that is prepared already, or
    anything. `needs` are libraries beside NumPy and Pillow.
    """

    reads: ClassVar[Literal["path", "code", "name"]] = "path"
    holds: ClassVar[Literal["images", "arrays", "anything"]] = "images"
    needs: ClassVar[Needs] = Needs()
    of_pixels: ClassVar[bool] = False
    """Whether a target has the class of each pixel."""
    numbered: ClassVar[bool] = False
    """Whether the data themselves number their classes; else the order of the names does."""

    @classmethod
    def recognises(cls, path: Path) -> bool:
        """Whether a file or folder is of this layout, for a person who has not said so."""
        return False

    @classmethod
    def names_classes(cls) -> bool:
        """Whether the layout ever says what classes are called: else labels are numbers."""
        return cls.class_names is not Collection.class_names

    settings: DataSettings
    folder: Path

    @property
    def path(self) -> Path:
        """The file or folder behind the colon of `source`."""
        return (self.folder / regular_files.expanded(self.settings.place)).absolute()

    @property
    def part(self) -> str | None:
        """The named part of the source that is read; None: all of it."""
        return self.settings.split.part if self.settings.split else None

    def require(self) -> None:
        """Raise `InputError` for the first of the problems."""
        for _, message, hint in self.problems():
            raise self.wrong(message, hint)

    def wrong(self, message: str, hint: str) -> InputError:
        """The error for what is wrong with the source as a whole."""
        return InputError(message, place=self.settings.source, hint=hint)

    def only_input(self, inputs: Sequence[TensorSpec], what: str, hint: str) -> str:
        """The one input of the model, for `what` feeds no more. Raises `InputError`."""
        names = [spec.name for spec in inputs]
        name = self.settings.input or names[0]
        if names != [name]:
            raise self.wrong(f"{what} feeds one input, the model has {', '.join(names)}", hint)
        return name

    def parts(self) -> Sequence[str]:
        """The names that `split` may have; none where the source is one whole."""
        return ()

    def count(self) -> int:
        """How many samples the named part has. Raises `InputError`."""
        return len(self.open((TensorSpec(name="image", shape=(1, 3, 1, 1)),)))

    def class_count(self) -> int | None:
        """How many classes the labels are of; None where there are none. Raises as `open` does."""
        names = self.class_names()
        return len(names) if names else None

    @property
    def boxed(self) -> bool:
        """Whether a target has boxes, and is no class."""
        return False

    @abstractmethod
    def problems(self) -> list[Finding]:
        """What is wrong, without a heavy import."""

    @abstractmethod
    def ingredients(self, digests: FileDigests) -> dict[str, Any]:
        """What the chosen samples hold, by content. Plain JSON data; no heavy import."""

    def listed(self) -> Iterator[Path]:
        """Files whose names take part in the choice of samples, whether they are chosen or not."""
        return iter(())

    @abstractmethod
    def open(self, inputs: Sequence[TensorSpec]) -> RawSamples:
        """The chosen items for a model's inputs. Raises `InputError`, `TrustError`, `MissingError`."""

    def class_names(self) -> tuple[str, ...] | None:
        """What the classes are called, that of label 0 first; None where the source does not say.

        Raises as `open` does.
        """
        return None

    def class_ids(self) -> tuple[int, ...]:
        """What the source itself calls its classes, in the order of `class_names`; else nothing."""
        return ()

    def empty_classes(self) -> tuple[str, ...]:
        """The classes that no sample of the source has, as far as it tells without reading samples."""
        return ()

    def remarks(self, orient: bool) -> list[str]:
        """Where the source's parts do not agree, in sentences with counts; reads headers at most.

        `orient`: images are turned as their EXIF orientation says.
        """
        return []
