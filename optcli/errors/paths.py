"""Paths as people read them: without detours, and short where they lie below the current folder."""

from __future__ import annotations

import os
from pathlib import Path


def shown(path: str | os.PathLike[str]) -> str:
    """A path as messages print it: relative where it lies below the current folder, else absolute.

    `a/../b` becomes `b`, and doubled slashes go. Where a symbolic link makes the two differ, the real
    path is taken.
    """
    text = os.fspath(path)
    try:
        here = os.getcwd()
        whole = os.path.join(here, os.path.expanduser(text))
        plain = os.path.normpath(whole)
        if os.pardir in text.split(os.sep) and not _same(plain, whole):
            plain = os.path.realpath(whole)
    except (OSError, ValueError):  # the current folder is gone, or the name can be none of a file
        return os.path.normpath(text)
    relative = os.path.relpath(plain, here)
    return plain if relative.split(os.sep)[0] == os.pardir else relative


def place(text: str) -> str:
    """The place of a message: a path, with or without line and column, as `shown`; else as it is.

    Places are paths or names (`onnx › to_openvino`, `--set`); of names none begins with a slash or has
    a part `..` or `.`.
    """
    if os.path.isabs(text) or {os.pardir, os.curdir} & set(text.split(os.sep)):
        return shown(text)
    return text


def _same(one: str, other: str) -> bool:
    """Whether two paths lead to the same file, or neither leads to any."""
    there = os.path.lexists(other)
    return os.path.samefile(one, other) if there and Path(one).exists() else not there
