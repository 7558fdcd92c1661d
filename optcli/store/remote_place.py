"""Which remote store is used: said on the command line or in the environment, never in a recipe."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from optcli.errors import UsageError

URL_VARIABLE = "OPTCLI_REMOTE_STORE"
READ_ONLY_VARIABLE = "OPTCLI_REMOTE_READONLY"
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
    """The remote store of `--remote-store` or OPTCLI_REMOTE_STORE; None where neither names one.

    OPTCLI_REMOTE_READONLY says `read_only` as well. Raises `UsageError` for what is no URL and for a
    value of that variable that says neither yes nor no.
    """
    place = "--remote-store" if url else URL_VARIABLE
    url = url or os.environ.get(URL_VARIABLE, "")
    if not url:
        return None
    if not _URL.fullmatch(url):
        raise UsageError(
            f"found {url!r}, wanted the URL of a remote store",
            place=place,
            hint="write s3://bucket/prefix, gs://bucket/prefix or file:///folder",
        )
    text = os.environ.get(READ_ONLY_VARIABLE, "").strip().lower()
    if text not in (*_TRUE, *_FALSE):
        raise UsageError(
            f"found {text!r}, wanted 1 or 0", place=READ_ONLY_VARIABLE, hint="1 keeps it from writing"
        )
    return RemotePlace(url.rstrip("/"), read_only or text in _TRUE)


def library_for(protocol: str) -> str:
    """The command that installs what fsspec needs for a protocol, as a hint."""
    return f"`pip install 'fsspec[{_EXTRAS.get(protocol, protocol)}]'`"
