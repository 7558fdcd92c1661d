"""A model that is compiled for some batch sizes, each by itself: which of them computes a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

Arrays: TypeAlias = Mapping[str, np.ndarray]


class Forms:
    """Calls of a model; `make` compiles it for a batch size, or for any (None).

    A batch goes to the smallest of the settings' `batch_sizes` that holds it, filled up with copies of
    its last row, which are cut off the outputs. With `any_size` there is also a form for any size
    (None), to which all others go: batches above the largest size, and those with fewer rows than
    `padded_from` has for the next one. Without it, a batch above the largest size is computed in parts.
    """

    def __init__(
        self, make: Callable[[int | None], Callable[[Arrays], Arrays]], bundle: Mapping[str, Any]
    ) -> None:
        settings = bundle["runner"]["settings"]
        self._sizes, self._padded_from = sorted(settings["batch_sizes"]), settings["padded_from"]
        self._first = bundle["inputs"][0]["name"]
        self._any = make(None) if settings["any_size"] else None
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
        if self._any is not None and rows < self._padded_from.get(str(size), 1):
            return self._any(feed)
        outputs = self._forms[size]({name: filled(array, size) for name, array in feed.items()})
        return {name: array[:rows] for name, array in outputs.items()}


def filled(array: np.ndarray, size: int) -> np.ndarray:
    """The rows, and the last one repeated until there are `size`."""
    return np.concatenate([array, np.repeat(array[-1:], size - len(array), axis=0)])
