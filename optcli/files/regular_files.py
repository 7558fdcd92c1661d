"""Regular files only: what a person names may be a pipe, a device, a socket or a folder.

Opening a pipe waits for whoever writes into it, and `/dev/zero` never ends. Every file that a recipe or
a command line names is looked at here before it is opened. What is wrong is an `OSError`, as for a
file that is not there, so that whoever reads files needs one `except` for both.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from io import BufferedReader
from pathlib import Path
from typing import Any

# What a person writes or reads: recipes, lists of ids, annotations, reports.
MOST_TEXT_BYTES = 10 * 1024 * 1024
MOST_JSON_BYTES = 1024 * 1024 * 1024

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
# In JSON, as an escape or as bytes: half of a pair that stands for one character.
_HALF_A_CHARACTER = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")


class IrregularFileError(OSError):
    """What was named is there, and is no regular file. `strerror` says what it is."""


def kind(mode: int) -> str | None:
    """What a file of a mode is, in words; None for a regular file."""
    return None if stat.S_ISREG(mode) else _KINDS.get(stat.S_IFMT(mode), "no regular file")


def check(path: str | Path) -> os.stat_result:
    """What the system knows of a regular file, links followed. Raises OSError for anything else."""
    try:
        status = os.stat(path)
    except ValueError as error:  # a NUL, or characters that no name of a file can have
        raise OSError(errno.EINVAL, f"no file can have this name ({error})", str(path)) from error
    return _regular(status, path)


def _regular(status: os.stat_result, path: str | Path) -> os.stat_result:
    irregular = kind(status.st_mode)
    if irregular is not None:
        raise IrregularFileError(errno.EINVAL, f"found {irregular}, wanted a regular file", str(path))
    return status


def opened(path: str | Path) -> BufferedReader:
    """A regular file, opened to be read. Raises OSError; never waits.

    It is looked at again once it is open: between two looks it may have become a pipe.
    """
    check(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
    try:
        _regular(os.fstat(descriptor), path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read(path: str | Path, most_bytes: int = MOST_TEXT_BYTES) -> bytes:
    """The content of a regular file. Raises OSError, also where it has more than `most_bytes`."""
    with opened(path) as stream:
        data = stream.read(most_bytes + 1)
        if len(data) > most_bytes:
            size = max(os.fstat(stream.fileno()).st_size, len(data))
            message = f"found {size} bytes, wanted at most {most_bytes}"
            raise OSError(errno.EFBIG, message, str(path))
    return data


def is_file(path: str | Path) -> bool:
    """Whether a regular file is there, links followed; False for any name that no file can have."""
    try:
        check(path)
    except OSError:
        return False
    return True


def is_folder(path: str | Path) -> bool:
    """Whether a folder is there, links followed; False for any name that no folder can have."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def problem(path: str | Path, shown: str) -> str:
    """What is wrong with a file that is to be read, in words; empty where nothing is."""
    try:
        check(path)
    except FileNotFoundError:
        return f"no such file: {shown}"
    except OSError as error:
        return f"{shown}: {error.strerror or error}"
    return ""


def json_of(path: str | Path, most_bytes: int = MOST_TEXT_BYTES) -> Any:
    """What a JSON file holds. Raises OSError as `read` does, and ValueError for what is no JSON."""
    return parsed_json(read(path, most_bytes))


def parsed_json(data: bytes, **options: Any) -> Any:
    """What JSON from elsewhere holds; `options` are those of `json.loads`.

    Raises ValueError for what is no JSON, is nested too deeply, or has text that no file can hold.
    """
    try:
        record = json.loads(data, **options)
        if _HALF_A_CHARACTER.search(data):
            json.dumps(record, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("a text holds half a character, such as \\ud800") from None
    return record


def expanded(text: str) -> Path:
    """A path as a person writes it, with `~` for a home; as it stands where nobody has that home."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def names_in(folder: str | Path) -> list[str]:
    """The sorted names in a folder; none where it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except (OSError, ValueError):
        return []
