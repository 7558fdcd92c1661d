"""A cache of predictions: what a bundle's `cache.py` is told."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

from optcli.errors import UsageError, excerpt
from optcli.files.digest import of_value
from optcli.pipeline.model_files.built_variant import BuiltVariant

FILE = "cache.json"
MEMORY = "memory"
_SCHEMES = ("redis", "rediss", "unix")
# The variable that takes the place of the file's address when the server starts, and what switches the
# cache off.
VARIABLE, OFF = "CACHE_URL", "off"
TTL_S = 3600.0


def checked_place(place: str) -> str:
    """`memory`, or the URL of a Redis. Raises `UsageError` for anything else, and for a password."""
    if place == MEMORY:
        return place
    hint = f"wanted {MEMORY}, redis://HOST:6379/0, rediss://HOST or unix:///PATH"
    try:
        url = urlsplit(place)
        known = url.scheme in _SCHEMES and bool(url.path if url.scheme == "unix" else url.hostname)
        known = known and url.port != 0
    except ValueError:
        known = False
    if not known:
        given = excerpt(place.partition("@")[2] or place)
        raise UsageError(f"{given!r} is no cache that optcli knows", place="--cache", hint=hint)
    if url.password or "password=" in url.query:
        raise UsageError(
            "the URL has a password, and it would stand in the bundle",
            place="--cache",
            hint=f"leave it out, and start the server with the whole URL in {VARIABLE}",
        )
    return place


def model_digest(built: BuiltVariant) -> str:
    """A digest of all that decides an answer beside the request and its preparation."""
    return of_value([built.artifact.digest, built.runner_name, built.options])


def cache_file(place: str, built: BuiltVariant, ttl_s: float = TTL_S) -> str:
    """The content of `cache.json`.

    Answers of another artifact or runner have other keys: a Redis may serve many.
    """
    content = {
        "schema": 1,
        "model": model_digest(built),
        "place": checked_place(place),
        "ttl_s": ttl_s,
        "most_bytes": 256 * 1024 * 1024,
    }
    return json.dumps(content, indent=2) + "\n"


def write(folder: Path, content: str) -> None:
    """Write `cache.json`. Raises OSError."""
    (folder / FILE).write_text(content, encoding="utf-8")
