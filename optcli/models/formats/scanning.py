"""What is read of an archive of torch before torch opens it: its operators, and what it unpickles.

A file that can be read in more than one way, or that is damaged, is refused at once (`InputError`).
A doubt is what a person must trust: objects of classes, which only a pickle that runs code makes, and
operators of a library that would be imported by the name in the file. The rest of a program is not
looked into: a worker that can only read opens it, or the person trusts it (`pipeline.trusting`).
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from optcli.errors import InputError, TrustError, first_line

_MOST_DOUBTS = 10
# Whose operators torch brings itself.
_TORCHS = frozenset(
    {
        *("aten", "prim", "prims", "quantized", "_quantized", "mkldnn", "mkldnn_prepacked", "onednn"),
        *("prepacked", "sparse", "rnn", "xnnpack", "profiler", "higher_order"),
    }
)


@dataclass
class Scan:
    """Whose operators are called: `namespaces` of known libraries, and `unknown` ones.

    `doubts` are half sentences about the file: `it calls the operator mine.f, which torch lacks`.
    """

    namespaces: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    doubts: list[str] = field(default_factory=list)

    def doubt(self, what: str) -> None:
        """Note what a person must trust; the first few are enough to be shown."""
        if len(self.doubts) < _MOST_DOUBTS and what not in self.doubts:
            self.doubts.append(what)

    def call(self, namespace: str, name: str, libraries: Collection[str]) -> None:
        """Note an operator or a class of a namespace; `libraries` are those that may be imported."""
        if namespace in libraries:
            self.namespaces.add(namespace)
        elif namespace not in _TORCHS:
            self.unknown.add(namespace)
            self.doubt(f"it calls the operator {namespace[:40]}.{name[:40]}, which torch lacks")

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
