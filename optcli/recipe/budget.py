"""How much a recipe may be, all of its files together: what lies beyond is a mistake or an attack.

Little text can be very much: aliases repeat what they name, a file may be extended many times, and a
matrix multiplies. So what counts is what comes out, not what is written.
"""

from __future__ import annotations

from optcli.recipe.nodes import Node

MOST_BYTES = 256 * 1024
MOST_VALUES = 20_000
# Merging is quicker than reading, and a recipe in five layers merges what lies below five times.
_MOST_MERGED = 5 * MOST_VALUES


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
