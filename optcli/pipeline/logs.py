"""Where a step leaves what it said, and how it is carried out again."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from optcli.store import Store


def log_of(store: Store, key: str) -> Path:
    """Where the log of a step lies; the call that repeats it lies beside."""
    return store.log_folder(key) / "log.txt"


def repeat_command(store: Store, key: str) -> str:
    """The command that carries out one recorded step again, into a folder of one's choice."""
    call = log_of(store, key).with_name("call.json")
    return f"{shlex.quote(sys.executable)} -m optcli.pipeline.step {shlex.quote(str(call))} NEW_FOLDER"
