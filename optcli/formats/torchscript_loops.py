"""Whether a TorchScript archive runs a loop as soon as it is opened.

torch calls `__setstate__` of the archive's own classes while it reads it, and all that this calls. What
torch writes there packs weights and has no loop; one without end would keep whoever only looks.
"""

from __future__ import annotations

import io
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass, field

_ON_OPENING = "__setstate__"
_DEEPEST = 4
_LOOPS = frozenset({"while", "for"})


@dataclass
class _Function:
    """All functions of one name: which names stand in them, and whether there is a loop."""

    names: set[str] = field(default_factory=set)
    loops: bool = False


def on_opening(members: Iterable[str]) -> bool:
    """Whether the code of these members holds a loop that is reached from `__setstate__`.

    Also for many calls within calls: each may call the next one often.
    Names are followed wherever a function is called so: it may say yes for one that is not reached.
    """
    members = list(members)
    if not any(_ON_OPENING in code for code in members):
        return False
    functions: dict[str, _Function] = {}
    for code in members:
        _collect(code, functions)
    reached = {_ON_OPENING}
    for _ in range(_DEEPEST):
        called = [functions[name] for name in reached & functions.keys()]
        if any(function.loops for function in called):
            return True
        reached = set().union(*(function.names for function in called))
    return bool(reached & functions.keys())


def _collect(code: str, functions: dict[str, _Function]) -> None:
    inside: _Function | None = None
    before = ""
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type != tokenize.NAME:
            continue
        word = token.string
        if before == "def":
            inside = functions.setdefault(word, _Function())
        elif word == "class":
            inside = None
        elif inside is not None:
            inside.loops |= word in _LOOPS
            inside.names.add(word)
        before = word
