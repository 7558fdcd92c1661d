"""What a command line said, and how it is run as a process of its own."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pytest

# A build prints the same when it measures less, and on a busy machine hardly anything again.
_HURRIED = {"launches": 1, "rounds": 2, "calls": 2, "max_seconds": 0.05}


def hurried(arguments: Sequence[str]) -> list[str]:
    """The words after `optcli`, such that it measures no longer than it must.

    A search has half a minute and judges one finalist. A load takes half a second.
    """
    sets = {f"latency.{name}": value for name, value in _HURRIED.items()}
    shorter = {}
    if arguments[0] == "tune":
        shorter = {"--minutes": "0.5"}
        sets["tune.finalists"] = 1
    elif arguments[0] == "loadtest":
        shorter = {"--seconds": "0.5", "--settle": "0.2s"}
    words = [
        shorter.get(before, word) for before, word in zip(("", *arguments), arguments, strict=False)
    ]
    if arguments[0] not in ("build", "tune"):
        return words
    return [*words, *chain.from_iterable(("--set", f"{name}={value}") for name, value in sets.items())]


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


def optcli_here(*arguments: object, folder: Path, together: bool = False, **environment: str) -> Said:
    """The same in this process; `together`: `out` holds both streams, as a terminal shows them."""
    from optcli import cli

    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch, contextlib.chdir(folder):
        for name, value in environment.items():
            patch.setenv(name, value)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out if together else err):
            code = cli.run([str(each) for each in arguments])
    return Said(code, *(each.buffer.getvalue().decode() for each in (out, err)))


def as_an_ordinary_user() -> None:
    """Before a program starts: even the superuser may then no more than the modes of files say."""
    drop, overrides, reads, owns = 24, 1, 2, 3  # PR_CAPBSET_DROP; CAP_DAC_*, CAP_FOWNER
    for capability in (overrides, reads, owns) if os.geteuid() == 0 else ():
        if ctypes.CDLL(None).prctl(drop, capability, 0, 0, 0) != 0:
            os._exit(77)
