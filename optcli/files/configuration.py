"""The user's own configuration, which no recipe can change."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from optcli.errors import UsageError, did_you_mean, first_line

REMOTE_STORE, REMOTE_READONLY, DEVICES = "remote_store", "remote_readonly", "devices"
_WANTED = {
    REMOTE_STORE: (str, "text"),
    REMOTE_READONLY: (bool, "true or false"),
    DEVICES: (dict, "a table for each device"),
}
_EXAMPLE = f'write {REMOTE_STORE} = "s3://bucket/prefix", or remove the file'


def file() -> Path:
    """Where it lies: `optcli/config.toml` below XDG_CONFIG_HOME, else `~/.config`."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(base) / "optcli" / "config.toml"


def read() -> dict[str, Any]:
    """What it says, by key; empty where there is none. Raises `UsageError`."""
    path = file()
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError, PermissionError):  # somebody else's, with sudo
        return {}
    except (OSError, ValueError) as error:
        raise wrong(f"it cannot be read: {first_line(error)}") from error
    import tomllib

    try:
        settings = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise wrong(f"it is no TOML: {first_line(error)}") from error
    for name, value in settings.items():
        if name not in _WANTED:
            hint = did_you_mean(name, list(_WANTED))
            raise UsageError(f"found the unknown key {name!r}", place=str(path), hint=hint)
        kind, wanted = _WANTED[name]
        if type(value) is not kind:
            raise wrong(f"{name}: found {value!r}, wanted {wanted}")
    return settings


def wrong(what: str, hint: str = _EXAMPLE) -> UsageError:
    """The error for something in the file."""
    return UsageError(what, place=str(file()), hint=hint)
