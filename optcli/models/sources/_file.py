"""What sources that are one file share: where it lies, and seeing that it is there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from optcli.errors import InputError, did_you_mean, excerpt, shown_path
from optcli.files import regular_files
from optcli.files.digest import FileDigests
from optcli.models.formats import model_files
from optcli.models.sources import Source


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
