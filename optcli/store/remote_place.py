"""Which remote store is used. A user says so; a recipe never does."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from optcli.errors import UsageError, did_you_mean, first_line

URL_VARIABLE = "OPTCLI_REMOTE_STORE"
READ_ONLY_VARIABLE = "OPTCLI_REMOTE_READONLY"
# There a whole object appears at once. Elsewhere one is written under another name and moved.
WHOLE_OBJECTS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "r2"})
_URL_KEY, _READ_ONLY_KEY = "remote_store", "remote_readonly"
_URL = re.compile(r"[a-z][a-z0-9+.-]*://.+")
_SECRET = re.compile(r"//[^/@]*@")
# What fsspec calls the libraries of a protocol, where it is another word.
_EXTRAS = {"https": "http", "gs": "gcs", "s3a": "s3", "az": "abfs"}
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


@dataclass(frozen=True)
class RemotePlace:
    """The URL of a remote store that fsspec can open; nothing is written to one that is `read_only`."""

    url: str
    read_only: bool = False

    @property
    def shown(self) -> str:
        """The URL as people may see it: without a user's name and password."""
        return _SECRET.sub("//", self.url)

    @property
    def protocol(self) -> str:
        """The part before `://`, such as s3."""
        return self.url.partition("://")[0]


def remote_place(url: str | None = None, *, read_only: bool = False) -> RemotePlace | None:
    """The remote store of `--remote-store`, else OPTCLI_REMOTE_STORE, else the user's configuration.

    None where none of them names one. An empty OPTCLI_REMOTE_STORE names none, whatever the
    configuration says. `read_only`, else OPTCLI_REMOTE_READONLY, else the configuration says whether
    it is written to. Raises `UsageError` for what is no URL, and for a variable or a configuration that
    cannot be understood.
    """
    configured = _configured()
    place, named = "--remote-store", url
    if not named and URL_VARIABLE in os.environ:
        place, named = URL_VARIABLE, os.environ[URL_VARIABLE]
    elif not named:
        place, named = f"{configuration_file()}: {_URL_KEY}", str(configured.get(_URL_KEY, ""))
    if not named:
        return None
    if not _URL.fullmatch(named):
        raise UsageError(
            f"found {named!r}, wanted the URL of a remote store",
            place=place,
            hint="write s3://bucket/prefix, gs://bucket/prefix or file:///folder",
        )
    return RemotePlace(named.rstrip("/"), read_only or _is_read_only(configured))


def configuration_file() -> Path:
    """The user's own configuration: `optcli/config.toml` below XDG_CONFIG_HOME, else `~/.config`."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(base) / "optcli" / "config.toml"


def library_for(protocol: str) -> str:
    """The command that installs what fsspec needs for a protocol, as a hint."""
    return f"`pip install 'fsspec[{_EXTRAS.get(protocol, protocol)}]'`"


def _is_read_only(configured: dict[str, str | bool]) -> bool:
    text = os.environ.get(READ_ONLY_VARIABLE, "").strip().lower()
    if text not in (*_TRUE, *_FALSE):
        raise UsageError(
            f"found {text!r}, wanted 1 or 0", place=READ_ONLY_VARIABLE, hint="1 keeps it from writing"
        )
    return text in _TRUE if text else bool(configured.get(_READ_ONLY_KEY, False))


def _configured() -> dict[str, str | bool]:
    """What the user's configuration says; empty where there is none. Raises `UsageError`."""
    path = configuration_file()
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError, PermissionError):  # somebody else's, with sudo
        return {}
    except (OSError, ValueError) as error:
        raise _wrong(path, f"it cannot be read: {first_line(error)}") from error
    import tomllib

    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _wrong(path, f"it is no TOML: {first_line(error)}") from error
    kinds: dict[str, type] = {_URL_KEY: str, _READ_ONLY_KEY: bool}
    for name, value in content.items():
        if name not in kinds:
            hint = did_you_mean(name, list(kinds))
            raise UsageError(f"found the unknown key {name!r}", place=str(path), hint=hint)
        if type(value) is not kinds[name]:
            wanted = "text" if kinds[name] is str else "true or false"
            raise _wrong(path, f"{name}: found {value!r}, wanted {wanted}")
    return content


def _wrong(path: Path, what: str) -> UsageError:
    example = f'{_URL_KEY} = "s3://bucket/prefix"'
    return UsageError(what, place=str(path), hint=f"write {example}, or remove the file")
