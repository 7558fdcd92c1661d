"""What sources that are one file share: seeing that it is there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from optcli import regular_files
from optcli.errors import excerpt
from optcli.paths import shown
from optcli.sources import Source


def absent(file: Path, suffixes: Sequence[str]) -> tuple[str, str] | None:
    """Why there is no such file, and a hint with the names that lie beside; None where it is there."""
    if regular_files.is_folder(file):
        return f"{shown(file)} is a folder, wanted a file", "name the file in it"
    if regular_files.is_file(file):
        return None
    near = [name for name in regular_files.names_in(file.parent) if name.endswith(tuple(suffixes))]
    listed = excerpt(", ".join(near[:5]), 200)
    hint = f"there are: {listed}" if near else "paths are relative to the recipe's folder"
    try:
        regular_files.check(file)
    except OSError as error:
        if not isinstance(error, FileNotFoundError | NotADirectoryError):
            return f"{shown(file)}: {error.strerror or error}", hint
    return f"there is no file {shown(file)}", hint


def problems(
    source: Source, file: Path, what: str, suffixes: Sequence[str]
) -> list[tuple[str, str, str]]:
    """What is wrong with the file, as `Source.problems` tells it; `what` is such as `an ONNX file`."""
    problems = []
    missing = absent(file, suffixes)
    if missing is not None:
        problems.append(("source", *missing))
    elif not os.access(file, os.R_OK):
        problems.append(("source", f"{shown(file)} cannot be read", "look at its permissions"))
    elif file.stat().st_size == 0:
        problems.append(("source", f"{shown(file)} is empty", "copy or export the file again"))
    if source.weights is not None:
        problems.append(("weights", f"{what} brings its own weights", "remove `weights`"))
    if source.arguments:
        problems.append(("arguments", f"{what} takes no arguments", "remove `arguments`"))
    return problems
