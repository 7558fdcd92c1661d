"""What a command line said, and how it is run as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Said:
    """An exit code, and what came on stdout and on stderr."""

    code: int
    out: str
    err: str


def optcli_process(*arguments: object, folder: Path, **environment: str) -> Said:
    """Run `optcli ARGUMENTS` in a folder, as `python -m optcli`."""
    done = subprocess.run(
        [sys.executable, "-m", "optcli", *map(str, arguments)],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return Said(done.returncode, done.stdout, done.stderr)
