"""Where a step leaves what it said, and how it is carried out again."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from optcli.store import Store

_MOST_LOG_BYTES = 256 * 1024


def log_of(store: Store, key: str) -> Path:
    """Where the log of a step lies; the call that repeats it lies beside."""
    return store.log_folder(key) / "log.txt"


def repeat_command(store: Store, key: str) -> str:
    """The command that carries out one recorded step again, into a folder of one's choice."""
    call = log_of(store, key).with_name("call.json")
    return f"{shlex.quote(sys.executable)} -m optcli.pipeline.step {shlex.quote(str(call))} NEW_FOLDER"


def log_end(path: Path) -> str:
    """The end of a log; empty where it cannot be read."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - _MOST_LOG_BYTES))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""
