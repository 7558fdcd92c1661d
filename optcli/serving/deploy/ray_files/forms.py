"""A model that is compiled for some batch sizes, each by itself: which of them computes a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

Arrays: TypeAlias = Mapping[str, np.ndarray]


class Forms:
    """Calls of a model; `make` compiles it for a batch size, or for any size (None).

    A batch goes to the smallest of the settings' `batch_sizes` that holds it, filled up with copies of
    its last row, which are cut off the outputs. With `any_size` there is also a form for any size
    (None), to which all others go: batches above the largest size, and those with fewer rows than
    `padded_from` has for the next one.
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
        """The outputs by name. Raises ValueError for more rows than any form has."""
        rows = len(feed[self._first])
        size = min((size for size in self._sizes if size >= rows), default=None)
        if self._any and (size is None or rows < self._padded_from.get(str(size), 1)):
            return self._any(feed)
        if size is None:
            raise ValueError(f"the model is compiled for batches of at most {max(self._sizes)} rows")
        if size == rows:
            return self._forms[size](feed)
        copies = [1] * (rows - 1) + [size - rows + 1]
        outputs = self._forms[size]({n: np.repeat(array, copies, axis=0) for n, array in feed.items()})
        return {name: array[:rows] for name, array in outputs.items()}
