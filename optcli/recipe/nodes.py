"""A recipe as it was written: plain values that remember where they stand.

Everything that changes a recipe before it is checked (extending, overriding, substituting, writing
variants from a matrix) works on these nodes, so that a problem found at the end still names the
file, line and column that a person has to mend.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from optcli.errors import Problem, excerpt

# Nobody reads more, and to look for what was meant in thousands of places takes minutes.
_MOST_PROBLEMS = 100
# Values are cut where they are quoted; this is for what is put together of many.
_MOST_SAID = 1000
MOST_BYTES = 256 * 1024
MOST_VALUES = 20_000
# Merging is quicker than reading, and a recipe in five layers merges what lies below five times.
_MOST_MERGED = 5 * MOST_VALUES


@dataclass(frozen=True)
class Position:
    """Where something stands. `line` and `column` count from 1; both are 0 outside a file."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file

    @staticmethod
    def parse(text: str) -> Position:
        """The place that `str` wrote; a number behind it (`PassUse.place`) is left out."""
        match = re.fullmatch(r"(.*?)(?::(\d+):(\d+))?(?: #\d+)?", text, re.DOTALL)
        assert match is not None
        return Position(match[1], int(match[2] or 0), int(match[3] or 0))


@dataclass(frozen=True)
class Node:
    """A scalar, a tuple of nodes or a mapping to nodes.

    `place` is where the value begins, `key` where the key before it begins. `text` is what stood
    there before a value was substituted and given its type.
    """

    value: Any
    place: Position
    key: Position | None = None
    text: str | None = None

    @property
    def start(self) -> Position:
        """Where the key begins, or the value where there is no key."""
        return self.key or self.place

    def get(self, name: str) -> Node | None:
        """The node under a key; None where there is none or this is no mapping."""
        return self.value.get(name) if isinstance(self.value, dict) else None

    def items(self) -> Iterator[tuple[str, Node]]:
        """Keys and nodes of a mapping; nothing for any other value."""
        return iter(self.value.items() if isinstance(self.value, dict) else ())

    def elements(self) -> Sequence[Node]:
        """The nodes of a list; nothing for any other value."""
        return self.value if isinstance(self.value, tuple) else ()

    def plain(self) -> Any:
        """The value without its places: dicts, lists and scalars."""
        if isinstance(self.value, dict):
            return {name: node.plain() for name, node in self.value.items()}
        if isinstance(self.value, tuple):
            return [node.plain() for node in self.value]
        return self.value

    def with_items(self, changes: dict[str, Node]) -> Node:
        """The mapping with some keys added or replaced."""
        return replace(self, value={**self.value, **changes})

    def without(self, *names: str) -> Node:
        """The mapping without some keys."""
        return replace(self, value={k: v for k, v in self.items() if k not in names})


class TooManyProblemsError(Exception):
    """There are too many problems to go on looking: the first ones are shown."""


class Problems:
    """Everything found wrong so far, up to a hundred: the next one raises `TooManyProblemsError`.

    One wrong thing gives one problem: at a place that has a problem already, later ones are what
    follows from it and are left out, unless they are of another `kind`.
    """

    def __init__(self) -> None:
        self._problems: dict[tuple[Position, str], Problem] = {}
        self._files: dict[str, int] = {}
        self._more: list[Problem] = []

    def reading(self, file: str) -> None:
        """Files come in the order in which they are read."""
        self._files.setdefault(file, len(self._files))

    def add(self, place: Position, message: str, hint: str = "", *, kind: str = "") -> None:
        """Note a problem."""
        if (place, kind) in self._problems:
            return
        message, hint = excerpt(message, _MOST_SAID), excerpt(hint, _MOST_SAID)
        if len(self._problems) == _MOST_PROBLEMS:
            message = f"there are more than these {_MOST_PROBLEMS} problems"
            hint = "correct these first: one mistake often causes several problems"
            self._more = [Problem(place.file, place.line, place.column, message, hint)]
            raise TooManyProblemsError
        problem = Problem(place.file, place.line, place.column, message, hint)
        self._problems[place, kind] = problem

    def at(self, place: Position) -> bool:
        """Whether something is wrong at a place already."""
        return any(place == wrong for wrong, _ in self._problems)

    def __len__(self) -> int:
        return len(self._problems)

    def in_order(self) -> list[Problem]:
        """All problems in file order; those of the command line come last."""
        last = len(self._files)
        ordered = sorted(
            self._problems.values(), key=lambda p: (self._files.get(p.file, last), p.line, p.column)
        )
        return [*ordered, *self._more]


class ReadingBudget:
    """What is left to one recipe. `bytes` are of text that may still be read."""

    def __init__(self) -> None:
        self.bytes = MOST_BYTES
        self._written = self._values = MOST_VALUES
        self._merged = _MOST_MERGED

    def write(self) -> bool:
        """Count one key or value as it is written; False where there are too many."""
        self._written -= 1
        return self._written >= 0

    def value(self) -> bool:
        """Count one value, those that an alias repeats each time; False where there are too many."""
        self._values -= 1
        return self._values >= 0

    def merge(self, node: Node) -> bool:
        """Count what is extended, each time it is; False where it is too much."""
        self._merged -= size(node, self._merged + 1)
        return self._merged >= 0


def size(node: Node, most: int) -> int:
    """How many values a node has, itself included; `most` where it has more."""
    count, waiting = 0, [node]
    while waiting and count < most:
        count += 1
        value = waiting.pop().value
        if isinstance(value, dict):
            waiting.extend(value.values())
        elif isinstance(value, tuple):
            waiting.extend(value)
    return count
