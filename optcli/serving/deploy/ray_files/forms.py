"""A model that is compiled for some batch sizes, each by itself: which of them computes a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

Arrays: TypeAlias = Mapping[str, np.ndarray]


class Forms:
    """Calls of a model; `make` compiles it for a batch size, or for any (None).

    With `sizes` a batch goes to the smallest form that holds it, filled up with copies of its last
    row, which are cut off the outputs. A batch above the largest goes there in parts, or with
    `any_above` to the form for any size.
    """

    def __init__(
        self,
        make: Callable[[int | None], Callable[[Arrays], Arrays]],
        sizes: Sequence[int],
        first: str,
        *,
        any_above: bool = False,
    ) -> None:
        self._sizes, self._first = sorted(sizes), first
        self._any = make(None) if any_above or not sizes else None
        self._forms = {size: make(size) for size in self._sizes}

    def run(self, feed: Arrays) -> Arrays:
        """The outputs by name."""
        rows, largest = len(feed[self._first]), max(self._sizes, default=0)
        if rows > largest and self._any is not None:
            return self._any(feed)
        if rows > largest:
            parts = [
                self.run({name: array[start : start + largest] for name, array in feed.items()})
                for start in range(0, rows, largest)
            ]
            return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        size = next(size for size in self._sizes if size >= rows)
        if size == rows:
            return self._forms[size](feed)
        outputs = self._forms[size]({name: filled(array, size) for name, array in feed.items()})
        return {name: array[:rows] for name, array in outputs.items()}


def filled(array: np.ndarray, size: int) -> np.ndarray:
    """The rows, and the last one repeated until there are `size`."""
    result = np.empty((size, *array.shape[1:]), array.dtype)
    result[: len(array)] = array
    result[len(array) :] = array[-1]
    return result
