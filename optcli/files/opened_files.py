"""Files that code opens while it runs.

A key holds the code of a network and the files that the recipe names. A file that the code opens by
itself is in no key: after a change of it optcli would reuse an old result, and a gate would give both
sides the same file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from optcli.files import regular_files

_CODE = (".py", ".pyc", ".pyi", ".so", ".pyd", ".dll")
# What installers write beside a package: the interpreter finds entry points and versions by it.
_INSTALLERS = (".egg-info", ".dist-info")
_METADATA = ("entry_points.txt", "METADATA", "PKG-INFO", "RECORD", "top_level.txt")
_WRITING = os.O_WRONLY | os.O_RDWR
# An audit hook cannot be taken away again: there is one, which tells whoever watches.
_watching: list[list[str]] = []
_hooked: list[bool] = []


@contextmanager
def watched() -> Iterator[list[str]]:
    """The paths, as they were given, of all that this process opens to read as long as the block runs.

    By Python's own `open` and `os.open`; what a library opens in C is not seen.
    """
    if not _hooked:
        _hooked.append(True)
        sys.addaudithook(_hear)
    paths: list[str] = []
    _watching.append(paths)
    try:
        yield paths
    finally:
        _watching.remove(paths)


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not _watching:
        return
    path, _, flags = arguments
    if isinstance(path, str | bytes | os.PathLike) and not (flags or 0) & _WRITING:
        for paths in _watching:
            paths.append(os.fsdecode(path))


def of_project(
    paths: Sequence[str], folders: Sequence[Path], recipe_files: Sequence[Path]
) -> list[Path]:
    """Which of these are files of a person's project: below one of its folders, and no code.

    What is hidden (`.cache`, `.venv`) or installed is not the project's. `recipe_files` are those
    that the recipe names.
    """
    tops = [Path(os.path.realpath(folder)) for folder in folders]
    named = {os.path.realpath(path) for path in recipe_files}
    files: dict[Path, None] = {}
    for path in map(os.path.realpath, paths):
        inside = [Path(path).relative_to(top).parts for top in tops if Path(path).is_relative_to(top)]
        hidden = any(part.startswith(".") or part == "site-packages" for i in inside for part in i)
        metadata = Path(path).parent.name.endswith(_INSTALLERS) and Path(path).name in _METADATA
        other = hidden or path in named or path.endswith(_CODE) or metadata
        if inside and not other and regular_files.is_file(path):
            files[Path(path)] = None
    return list(files)
