"""What sources that are one file share: seeing that it is there."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from optcli.paths import shown
from optcli.sources import Source


def problems(
    source: Source, file: Path, what: str, suffixes: Sequence[str]
) -> list[tuple[str, str, str]]:
    """What is wrong with the file, as `Source.problems` tells it; `what` is such as `an ONNX file`."""
    found = []
    if file.is_dir():
        found.append(("source", f"{shown(file)} is a folder, wanted a file", "name the file in it"))
    elif not file.is_file():
        near = sorted(path.name for path in file.parent.glob("*") if path.suffix in suffixes)
        hint = (
            f"there are: {', '.join(near[:5])}" if near else "paths are relative to the recipe's folder"
        )
        found.append(("source", f"there is no file {shown(file)}", hint))
    elif not os.access(file, os.R_OK):
        found.append(("source", f"{shown(file)} cannot be read", "look at its permissions"))
    elif file.stat().st_size == 0:
        found.append(("source", f"{shown(file)} is empty", "copy or export the file again"))
    if source.weights is not None:
        found.append(("weights", f"{what} brings its own weights", "remove `weights`"))
    if source.arguments:
        found.append(("arguments", f"{what} takes no arguments", "remove `arguments`"))
    return found
