"""The readable view: `artifacts/<recipe>/<variant>/` with the files a person would copy away."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from optcli.artifact import ABOUT, Artifact, described
from optcli.errors import StoreError, strerror
from optcli.files import digest
from optcli.observer import Observer
from optcli.store.locks import held


@contextmanager
def alone(folder: Path, observer: Observer) -> Iterator[None]:
    """Be the only build that writes into `folder`; waits, and says so, while another one is."""
    waiting = f"another build is writing {folder.name}; waiting for it"
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    lock = folder.with_name(f".{folder.name}.lock")
    with held(lock, waiting=lambda: observer.warned("results", waiting)):
        yield


def place(folder: Path, artifact: Artifact, made_by: list[dict[str, Any]]) -> None:
    """Put a copy of an artifact and an `artifact.json` about it into `folder`, whole or not at all.

    Copies, not links: what a person edits there must not reach the store. Left alone where the same
    artifact lies there already.
    """
    about = {
        "key": artifact.key,
        "digest": artifact.digest,
        "format": artifact.format.value,
        "precision": artifact.precision,
        "size_bytes": artifact.size_bytes,
        "made_by": made_by,
        "facts": artifact.facts,
    }
    if _is_current(folder, artifact, about):
        return
    with _writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            shutil.copytree(artifact.path, fresh, dirs_exist_ok=True, copy_function=shutil.copyfile)
            fresh.chmod(0o755)
            (fresh / ABOUT).write_text(json.dumps(about, indent=2) + "\n")
            remove(folder)
            fresh.rename(folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def read(folder: Path) -> tuple[dict[str, Any], str]:
    """What `artifact.json` says of a folder, and the digest of what lies there now, as the store's.

    Raises OSError and ValueError.
    """
    about = described(folder)
    files = [path for path in digest.files_below(folder) if path != folder / ABOUT]
    content = {path.relative_to(folder).as_posix(): digest.of_file(path) for path in files}
    return about, digest.of_value(sorted(content.items()))


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all. Raises `StoreError` where the disk is full or read-only."""
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)


def remove(folder: Path, about: str = ABOUT) -> None:
    """Remove a variant's folder, or another with a file `about`. Raises `StoreError` for others."""
    if not folder.exists():
        return
    if not (folder / about).is_file():
        raise StoreError(
            "this folder is in the way: optcli did not write it",
            place=str(folder),
            hint="move it away, or choose another place with --artifacts",
        )
    shutil.rmtree(folder)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into a `StoreError` that names the place."""
    try:
        yield
    except OSError as error:
        free = ""
        with suppress(OSError):
            free = f" ({shutil.disk_usage(path.parent).free / 1e6:.0f} MB are free there)"
        raise StoreError(
            f"cannot write: {strerror(error)}{free}",
            place=str(path),
            hint="make room or choose another place with --artifacts; the store keeps what was made",
        ) from error


def _is_current(folder: Path, artifact: Artifact, about: dict[str, Any]) -> bool:
    try:
        recorded = described(folder)
        stored = [path for path in artifact.path.rglob("*") if path.is_file()]
        copies = [folder / path.relative_to(artifact.path) for path in stored]
        sizes = [[path.stat().st_size for path in each] for each in (stored, copies)]
    except (OSError, ValueError):
        return False
    return sizes[0] == sizes[1] and recorded == json.loads(json.dumps(about))
