"""Nothing is written through a link that came with a commit: it may lead anywhere, such as to $HOME.

A link of the user's own, such as `artifacts` to another disk, is one that git does not track.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from optcli.errors import UsageError

_LINK = "120000"


class OutputPath(click.Path):
    """The type of options that name what optcli writes."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        refuse(path)
        return path


def refuse(path: Path) -> None:
    """Raise `UsageError` where git tracks a link on the way to `path`, or one below it."""
    whole = Path(os.path.abspath(path.expanduser()))
    linked = next((each for each in (*reversed(whole.parents), whole) if each.is_symlink()), None)
    target = linked or whole
    if not os.path.lexists(target):
        return
    folder = target.parent
    if not any((each / ".git").exists() for each in (folder, *folder.parents)):
        return
    for link in _tracked(folder, target.relative_to(folder)):
        raise UsageError(
            "git tracks this link, and optcli writes through none that a commit brings",
            place=str(link),
            hint="name another place, or take the link out of git (git rm --cached) where it is yours",
        )


def _tracked(folder: Path, name: Path) -> list[Path]:
    """The links that git tracks at a name below a folder; none without git."""
    import subprocess

    command = ["git", "-c", "core.fsmonitor=false", "-C", str(folder)]
    try:
        done = subprocess.run(
            [*command, "ls-files", "--stage", "-z", "--", f":(literal){name}"],
            capture_output=True,
            check=False,
        )
    except OSError:
        return []
    entries = os.fsdecode(done.stdout).split("\0")
    return [folder / entry.partition("\t")[2] for entry in entries if entry.startswith(_LINK)]
