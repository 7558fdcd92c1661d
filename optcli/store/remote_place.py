"""Which remote store is used. A user says so; a recipe never does."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from optcli.errors import UsageError
from optcli.files import configuration

URL_VARIABLE = "OPTCLI_REMOTE_STORE"
READ_ONLY_VARIABLE = "OPTCLI_REMOTE_READONLY"
# There a whole object appears at once. Elsewhere one is written under another name and moved.
WHOLE_OBJECTS = frozenset({"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "r2"})
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
    configured = configuration.read()
    place, named = "--remote-store", url
    if not named and URL_VARIABLE in os.environ:
        place, named = URL_VARIABLE, os.environ[URL_VARIABLE]
    elif not named:
        key = configuration.REMOTE_STORE
        place, named = f"{configuration.file()}: {key}", str(configured.get(key, ""))
    if not named:
        return None
    if not _URL.fullmatch(named):
        raise UsageError(
            f"found {named!r}, wanted the URL of a remote store",
            place=place,
            hint="write s3://bucket/prefix, gs://bucket/prefix or file:///folder",
        )
    return RemotePlace(named.rstrip("/"), read_only or _is_read_only(configured))


def library_for(protocol: str) -> str:
    """The command that installs what fsspec needs for a protocol, as a hint."""
    return f"`pip install 'fsspec[{_EXTRAS.get(protocol, protocol)}]'`"


def _is_read_only(configured: Mapping[str, Any]) -> bool:
    text = os.environ.get(READ_ONLY_VARIABLE, "").strip().lower()
    if text not in (*_TRUE, *_FALSE):
        raise UsageError(
            f"found {text!r}, wanted 1 or 0", place=READ_ONLY_VARIABLE, hint="1 keeps it from writing"
        )
    return text in _TRUE if text else bool(configured.get(configuration.REMOTE_READONLY, False))
