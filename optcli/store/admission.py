"""What somebody asks of a result that was fetched before it is used."""

from __future__ import annotations

from typing import Protocol

from optcli.store.entry import Entry


class Admission(Protocol):
    """Whether somebody uses an entry that was fetched. Both raise an `OptcliError` for one that is not.

    `TrustError` is for what is sound and runs code; anything else says that the entry is damaged.
    """

    def of_record(self, entry: Entry) -> None:
        """Look at what is said of the entry; its files need not be there."""
        ...

    def of_files(self, entry: Entry) -> None:
        """Look at the files as well, which have the digests that they should have."""
        ...
