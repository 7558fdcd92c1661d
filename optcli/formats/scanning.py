"""What a scan of a file found: whose operators it calls, and what it could not show to be harmless.

A file that can be read in more than one way, or that is damaged, is refused at once (`InputError`):
nothing that is said about it holds. What is well laid out and merely not proven to compute alone is a
doubt. A person who knows who made the file can open it all the same.
"""

from __future__ import annotations

import importlib
import importlib.util
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from optcli.errors import InputError, TrustError, first_line

_MOST_DOUBTS = 10


@dataclass
class Scan:
    """Whose operators are called: `namespaces` that are known, such as `aten`, and `unknown` ones.

    `doubts` are half sentences about the file: `its graph calls 'torch.ops.mine.f'`.
    """

    namespaces: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    doubts: list[str] = field(default_factory=list)

    def doubt(self, what: str) -> None:
        """Note what could do more than compute; the first few are enough to be shown."""
        if len(self.doubts) < _MOST_DOUBTS and what not in self.doubts:
            self.doubts.append(what)

    def require(self, path: Path, what: str, *, trust: bool) -> None:
        """Raise `TrustError` for a doubt about a file, a `what`, that nobody said to trust."""
        if self.doubts and not trust:
            raise TrustError(
                f"opening this {what} could run code: {self.doubts[0]}",
                place=str(path),
                hint="add --trust where you know who made it, or write it again from its network",
            )

    def unreadable(self, path: Path, what: str, writer: str, error: Exception) -> InputError:
        """The error for a file, a `what`, that torch does not read although the scan let it through."""
        lacking = f" and the library of {', '.join(sorted(self.unknown))}" if self.unknown else ""
        return InputError(
            f"torch cannot read this {what}: {first_line(error)}",
            place=str(path),
            hint=f"write it again with {writer} of this version of torch{lacking}",
        )

    def bring_unknown(self) -> None:
        """Import the packages that are called like unknown namespaces, where there are any.

        Only for a file that a person trusts: it says what is imported. What is not found is left to
        torch, which names the operator that it lacks.
        """
        for name in sorted(self.unknown):
            with suppress(ImportError, ValueError):
                if importlib.util.find_spec(name) is not None:
                    importlib.import_module(name)
