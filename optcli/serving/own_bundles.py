"""Which bundles this user's store wrote: a bundle is a program, and its server cannot be confined."""

from __future__ import annotations

import os
from pathlib import Path

from optcli.errors import InputError, TrustError, raised_as, strerror
from optcli.files.digest import files_below, of_file, of_value
from optcli.serving import bundle
from optcli.store import Store

_KIND = "bundle-written"
# Data, which people and load tests may change. bundle.json also names what the server imports.
_DATA = frozenset({".json", ".npz", ".yaml", ".md", ".txt", ".log", ".jpg", ".png"})


def remember(folder: Path, store: Store) -> None:
    """Note in the store that this bundle was written here."""
    key = _content(folder)
    with store.work(_KIND, key) as work:
        store.put(_KIND, key, work, {}, {"bundle": key})


def require_own(folder: Path, store: Store, *, trust: bool) -> None:
    """Raise `TrustError` for a bundle whose code or model `store` did not write, without `trust`.

    `UsageError` and `InputError` for a folder that is no bundle.
    """
    bundle.read(folder)
    if trust or store.get(_KIND, _content(folder)) is not None:
        return
    raise TrustError(
        "this bundle is a program, and this store did not write it, or somebody changed it since",
        place=str(folder),
        hint="add --trust where you know who made it: its server can do whatever you can; or name the"
        " --store that it was deployed from",
    )


def _content(folder: Path) -> str:
    """A digest of the bundle's code and model."""
    with raised_as(InputError, "the bundle cannot be read", of=OSError, reason=strerror,
                   place=str(folder), hint="deploy again"):  # fmt: skip
        return of_value(
            {
                os.fspath(path.relative_to(folder)): of_file(path)
                for path in files_below(folder)
                if path.suffix.lower() not in _DATA
                or path == folder / bundle.FILE
                or path.is_relative_to(folder / "model")
            }
        )
