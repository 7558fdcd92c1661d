"""What a recipe names outside itself, each kind as a type: files, the user's code, a machine's places.

Paths in a recipe are relative to the folder of the file that says them. A recipe that extends one in
another folder therefore changes them (`optcli/recipe/rebasing.py`), and finds them by these types: a
field that names a file and has none of them would lose it.
"""

from __future__ import annotations

import os
import typing
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic.fields import FieldInfo

from optcli.files import regular_files
from optcli.settings.user_imports import local_file

# Text that ends so is a file of weights; other text may be a name that the source knows.
WEIGHTS_SUFFIXES = (".safetensors", ".pth", ".pt", ".th", ".ckpt", ".bin", ".tar")


class PathReference:
    """Marks text that may name something relative to the recipe's folder."""

    @abstractmethod
    def moved(self, text: str, old: Path, new: Path) -> str:
        """The text that names from the folder `new` what `text` names from `old`."""

    def code(self, text: str) -> str | None:
        """The user's code that the text names, `FILE.py:NAME` or `MODULE:NAME`; None: it names none."""
        return None


@dataclass(frozen=True)
class _File(PathReference):
    def moved(self, text: str, old: Path, new: Path) -> str:
        if not text or text.startswith("~") or os.path.isabs(text):
            return text
        file = os.path.join(os.path.realpath(old), text)
        return Path(os.path.relpath(file, self._start(new))).as_posix()

    def _start(self, folder: Path) -> str:
        """The folder from which `..` leads where whoever opens the file is led."""
        return os.path.realpath(folder)


@dataclass(frozen=True)
class _Weights(_File):
    def moved(self, text: str, old: Path, new: Path) -> str:
        return super().moved(text, old, new) if is_weights_file(text, old) else text


@dataclass(frozen=True)
class _Code(_File):
    def moved(self, text: str, old: Path, new: Path) -> str:
        reference = self.code(text)
        prefix = text.removesuffix(reference)
        place, _, name = reference.rpartition(":")
        if not place.endswith(".py"):
            # A module beside the old recipe is not beside the new one: there it is known by its file.
            named = all(part.isidentifier() for part in place.split("."))
            file = local_file(old, place) if named else None
            if file is None:
                return text
            place = os.path.relpath(file, old)
        return f"{prefix}{super().moved(place, old, new)}:{name}"

    def _start(self, folder: Path) -> str:
        return os.path.abspath(folder)  # `user_code` takes `..` away before links are followed

    def code(self, text: str) -> str:
        return text.removeprefix("python:")


@dataclass(frozen=True)
class SourceReference(PathReference):
    """Marks `KIND:WHAT`: WHAT is a path where the kind is one of `files`, code where it is `python`.

    Where the kind is one of `places`, WHAT is a path if there is one, and else a repository's name.

    Of any other kind, or without one, it is a name: `torchvision:resnet50`, `top1`.
    """

    files: tuple[str, ...] = ()
    places: tuple[str, ...] = ()

    def moved(self, text: str, old: Path, new: Path) -> str:
        kind, colon, what = text.partition(":")
        if self.code(text) is not None:
            return f"{kind}{colon}{CODE.moved(what, old, new)}"
        is_file = self.is_file(kind) or (kind in self.places and os.path.exists(old / what))
        return f"{kind}{colon}{_File().moved(what, old, new)}" if is_file else text

    def is_file(self, kind: str) -> bool:
        """Whether a path stands behind the colon of a kind."""
        return kind in self.files

    def code(self, text: str) -> str | None:
        kind, _, what = text.partition(":")
        return what if kind == "python" else None


class OfOneMachine:
    """Marks what names a program or a place of one machine: never taken from somebody else's file.

    Such a path is absolute or relative to the working directory, a program may be found by PATH: no
    recipe's folder matters to it.
    """


RecipePath = Annotated[str, _File()]
"""A file or folder, relative to the recipe's folder. What begins with `/` or `~` is not."""
WeightsReference = Annotated[str, _Weights()]
"""A file of weights relative to the recipe's folder, or a name that the source knows."""
CODE = _Code()
CodeReference = Annotated[str, CODE]
"""`FILE.py:NAME` relative to the recipe's folder, or `MODULE:NAME`; `python:` may stand before it."""
MachinePath = Annotated[str, OfOneMachine()]
"""A program or a place of one machine: see `OfOneMachine`."""


def is_weights_file(text: str, folder: Path) -> bool:
    """Whether `weights` means a file and not a name, such as an entry of torchvision's list."""
    looks = "/" in text or "\\" in text or text.endswith(WEIGHTS_SUFFIXES)
    return looks or regular_files.is_file(folder / text)


def annotation_of(field: FieldInfo) -> Any:
    """A field's type with the marks that pydantic keeps apart from it."""
    return Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation


def is_of_one_machine(field: FieldInfo) -> bool:
    """Whether a field's value, or a value within it, names a program or a place of one machine."""
    return any(isinstance(mark, OfOneMachine) for mark in marks_in(annotation_of(field)))


def marks_in(annotation: Any) -> Iterator[Any]:
    """Everything that marks a type or a type within it; models within it are not entered."""
    yield from getattr(annotation, "__metadata__", ())
    for part in typing.get_args(annotation):
        yield from marks_in(part)
