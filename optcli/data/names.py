"""Names of classes in a text file, one a line, which a recipe may name."""

from __future__ import annotations

from pathlib import Path

from optcli.errors import InputError, excerpt
from optcli.files import regular_files


def names_in(folder: Path, file: str) -> tuple[str, ...]:
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
