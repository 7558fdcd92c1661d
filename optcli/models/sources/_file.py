"""What sources that are one file share: where it lies, and how its inputs differ from the recipe's."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from optcli.errors import InputError, InputsError, OptcliError, did_you_mean, excerpt, shown_path
from optcli.files import regular_files
from optcli.files.digest import FileDigests
from optcli.models.formats import model_files
from optcli.models.sources import Source
from optcli.settings import TensorSpec

Shape = tuple[int | str | None, ...]


def absent(file: Path, suffixes: Sequence[str]) -> tuple[str, str] | None:
    """Why there is no such file, and a hint with the names that lie beside; None where it is there."""
    if regular_files.is_folder(file):
        return f"{shown_path(file)} is a folder, wanted a file", "name the file in it"
    if regular_files.is_file(file):
        return None
    near = [name for name in regular_files.names_in(file.parent) if name.endswith(tuple(suffixes))]
    listed = excerpt(", ".join(near[:5]), 200)
    other = f"there are: {listed}" if near else "paths are relative to the recipe's folder"
    hint = did_you_mean(file.name, near, other)
    try:
        regular_files.check(file)
    except OSError as error:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            return f"{shown_path(file)}: {error.strerror or error}", hint
    return f"there is no file {shown_path(file)}", hint


def wrong(file: Path, message: str, hint: str) -> InputError:
    """The error for what is wrong within a file."""
    return InputError(message, place=str(file), hint=hint)


@contextmanager
def errors_of(file: Path, folder: Path) -> Iterator[None]:
    """Have errors about a copy in a folder say the file that a person knows."""
    try:
        yield
    except OptcliError as error:
        if error.place.startswith(str(folder)):
            error.message = error.message.replace(error.place, file.name)
            error.place = str(file)
        raise


def no_tensor(file: Path, name: str) -> InputError:
    """The error for an input of a file that is no tensor."""
    hint = "only models whose inputs are tensors can be run"
    return wrong(file, f"the input {name!r} is no tensor", hint)


class FileSource(Source):
    """A network in one file, which `what` names: `an ONNX file`."""

    foreign: ClassVar[bool] = True
    what: ClassVar[str]

    @property
    def file(self) -> Path:
        """The file, absolute."""
        return (self.folder / self.target).absolute()

    def problems(self) -> list[tuple[str, str, str]]:
        problems, file = [], self.file
        missing = absent(file, model_files.suffixes(self.format))
        if missing is not None:
            problems.append(("source", *missing))
        elif not os.access(file, os.R_OK):
            problems.append(("source", f"{shown_path(file)} cannot be read", "look at its permissions"))
        elif file.stat().st_size == 0:
            problems.append(("source", f"{shown_path(file)} is empty", "copy or export the file again"))
        if self.weights is not None:
            problems.append(("weights", f"{self.what} brings its own weights", "remove `weights`"))
        if self.arguments:
            problems.append(("arguments", f"{self.what} takes no arguments", "remove `arguments`"))
        return problems

    def ingredients(self, digests: FileDigests) -> dict[str, Any]:
        return {"kind": self.format.value, "file": digests.of(self.file)}


class DeclaredDifference(NamedTuple):
    """One difference in words. `is_fixed`: the file has one size where the recipe's varies."""

    message: str
    is_fixed: bool = False


def refused_inputs(
    wrong: Sequence[DeclaredDifference],
    declared: Mapping[str, tuple[str, Shape]],
    path: Path,
    ranges: Mapping[str, tuple[int, int]] | None = None,
) -> InputsError:
    """The error for inputs that differ; `declared` has type and shape of the file's, by name.

    `ranges` has the least and the largest size of those symbols that are bounded.
    """
    lines = [_line(name, dtype, shape, ranges or {}) for name, (dtype, shape) in declared.items()]
    fixed = any(each.is_fixed for each in wrong)
    hint = "paste this into the recipe" + (
        ", or export the model again with a dynamic size" if fixed else ""
    )
    return InputsError(
        f"the recipe's inputs are not those of the file: {'; '.join(each.message for each in wrong)}",
        place=str(path),
        hint="\n".join([f"{hint}:", "inputs:", *lines]),
    )


def differences(spec: TensorSpec, dtype: str, shape: Shape) -> list[DeclaredDifference]:
    """How an input of the recipe differs from the file's element type and shape."""
    name = spec.name
    wrong = []
    if dtype != spec.dtype:
        wrong.append(DeclaredDifference(f"{name} is {dtype} in the file, {spec.dtype} in the recipe"))
    if len(shape) != len(spec.shape):
        counts = f"{len(shape)} dimensions in the file, {len(spec.shape)} in the recipe"
        return [*wrong, DeclaredDifference(f"{name} has {counts}")]
    for index, (size, wanted) in enumerate(zip(shape, spec.shape, strict=True)):
        if not isinstance(size, int):
            continue
        what = f"dimension {index} of {name}" if index else f"the batch of {name}"
        if isinstance(wanted, str):
            difference = f"{what} is fixed at {size} in the file, {wanted!r} in the recipe"
            wrong.append(DeclaredDifference(difference, is_fixed=True))
        elif wanted != size:
            wrong.append(DeclaredDifference(f"{what} is {size} in the file, {wanted} in the recipe"))
    return wrong


def _line(name: str, dtype: str, shape: Shape, ranges: Mapping[str, tuple[int, int]]) -> str:
    """The line for one input that a person can paste into the recipe."""
    sizes: list[str] = []
    spans: dict[str, str] = {}
    for index, size in enumerate(shape):
        if isinstance(size, int):
            sizes.append(str(size))
            continue
        plain = re.sub(r"\W", "_", size or "")
        usable = plain.isidentifier() and plain != "batch"
        sizes.append("batch" if index == 0 else plain if usable else f"size_{index}")
        if size is not None and size in ranges:
            low, high = ranges[size]
            spans[sizes[-1]] = f", {sizes[-1]}: {{min: {low}, max: {high}}}"
    tail = "".join(spans.values())
    return f"  - {{name: {name!r}, dtype: {dtype}, shape: [{', '.join(sizes)}]{tail}}}"
