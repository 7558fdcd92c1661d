"""What a command line said, and how it is run as a process of its own."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

# A build prints the same when it measures less.
_HURRIED = {"launches": 1, "rounds": 2, "calls": 2, "max_seconds": 1}


def hurried(arguments: Sequence[str]) -> list[str]:
    """The words after `optcli`, such that a build measures no longer than it must.

    A search has a minute where it says two: it tries less then.
    """
    if arguments[0] == "tune":
        words = list(arguments)
        for place, word in enumerate(words[:-1]):
            if (word, words[place + 1]) == ("--minutes", "2"):
                words[place + 1] = "1"
        return words
    if arguments[0] != "build":
        return list(arguments)
    sets = (("--set", f"latency.{name}={value}") for name, value in _HURRIED.items())
    return [*arguments, *chain.from_iterable(sets)]


@dataclass(frozen=True)
class Said:
    """An exit code, and what came on stdout and on stderr."""

    code: int
    out: str
    err: str


def optcli_process(*arguments: object, folder: Path, timeout: float = 300, **environment: str) -> Said:
    """Run `optcli ARGUMENTS` in a folder, as `python -m optcli`."""
    done = subprocess.run(
        [sys.executable, "-m", "optcli", *map(str, arguments)],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    return Said(done.returncode, done.stdout, done.stderr)


def as_an_ordinary_user() -> None:
    """Before a program starts: even the superuser may then no more than the modes of files say."""
    drop, overrides, reads, owns = 24, 1, 2, 3  # PR_CAPBSET_DROP; CAP_DAC_*, CAP_FOWNER
    for capability in (overrides, reads, owns) if os.geteuid() == 0 else ():
        if ctypes.CDLL(None).prctl(drop, capability, 0, 0, 0) != 0:
            os._exit(77)
