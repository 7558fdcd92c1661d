"""Where baselines lie: names under `artifacts/baselines/`, files, and URLs that fsspec can read."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from optcli.errors import InputError, MissingError, StoreError, UsageError, did_you_mean, first_line
from optcli.files import folders
from optcli.store.remote_place import library_for

SUFFIX = ".optcli.tar"
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")
# What stays free on a disk beside a pack that is fetched or unpacked.
SPARE_BYTES = 256 * 1024**2
_MOST_BYTES = 64 * 1024**3
_PIECE_BYTES = 1024**2
_URL = re.compile(r"[a-z][a-z0-9+.-]*://")


def folder(artifacts: Path) -> Path:
    """Where named baselines are kept."""
    return artifacts / "baselines"


def place_of(name: str, artifacts: Path) -> Path:
    """The file of a named baseline, there or not. Raises `UsageError` for a name that is none."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot name a baseline",
            place="baseline",
            hint="use letters, digits, `.`, `-`, `_` and `+`, such as main or v1.2",
        )
    return folder(artifacts) / f"{name}{SUFFIX}"


def names(artifacts: Path) -> list[str]:
    """The baselines that are here."""
    return sorted(path.name.removesuffix(SUFFIX) for path in folder(artifacts).glob(f"*{SUFFIX}"))


def local_file(reference: str, artifacts: Path) -> Path | None:
    """The file that a NAME or a FILE stands for, there or not; None for a URL."""
    if _URL.match(reference):
        return None
    return place_of(reference, artifacts) if _is_name(reference) else Path(reference)


@contextmanager
def fetch(reference: str, artifacts: Path) -> Iterator[Path]:
    """A local file with the pack that a NAME, a FILE or a URL stands for, as long as the block runs.

    Raises `InputError` where there is none, `MissingError` where the URL's library is not installed.
    """
    if _URL.match(reference):
        with folders.temporary("baseline") as scratch:
            target = Path(scratch) / "baseline"
            _download(reference, target)
            yield target
        return
    path = Path(reference)
    # A name is never a file, whatever lies in this folder: v1.2 is one, and so is main.
    if not _is_name(reference):
        if not path.is_file():
            raise InputError(
                "there is no such file", place=reference, hint="check the path of the baseline"
            )
        yield path
        return
    named = place_of(reference, artifacts)
    if not named.is_file():
        hint = did_you_mean(reference, names(artifacts))
        raise InputError(
            f"there is no baseline {reference!r}",
            place=str(folder(artifacts)),
            hint=_hint(reference, hint),
        )
    yield named


def _is_name(reference: str) -> bool:
    return _NAME.fullmatch(reference) is not None and not reference.endswith(SUFFIX)


def _hint(reference: str, near: str) -> str:
    if Path(reference).is_file():
        return f"write ./{reference} for the file of that name"
    return near or f"save one with `optcli baseline save {reference}`, or name a git:REVISION"


def _copy(source: IO[bytes], file: IO[bytes], url: str) -> None:
    """Copy what a URL gives as long as there is room. Raises `InputError` and `StoreError`."""
    copied = 0
    while piece := source.read(_PIECE_BYTES):
        copied += len(piece)
        if copied > _MOST_BYTES:
            raise InputError(
                f"the baseline is larger than {_MOST_BYTES / 1e9:.0f} GB",
                place=url,
                hint="is this the address of a file that `optcli baseline save` wrote?",
            )
        free = shutil.disk_usage(file.name).free
        if len(piece) + SPARE_BYTES > free:
            raise StoreError(
                f"no room to fetch it: {copied / 1e6:.0f} MB came, {free / 1e6:.0f} MB are free",
                place=str(Path(file.name).parent),
                hint="make room, or set TMPDIR to a folder on a larger disk",
            )
        file.write(piece)


def _download(url: str, target: Path) -> None:
    import fsspec

    protocol = url.partition(":")[0]
    try:
        with fsspec.open(url, "rb") as source, target.open("wb") as file:
            _copy(source, file, url)
    except ImportError as error:
        raise MissingError(
            f"reading {protocol}: needs a library: {first_line(error)}",
            place=url,
            hint=library_for(protocol),
        ) from error
    except (OSError, ValueError) as error:
        raise InputError(
            f"the baseline cannot be fetched: {first_line(error)}",
            place=url,
            hint="check the address and your access to it",
        ) from error
