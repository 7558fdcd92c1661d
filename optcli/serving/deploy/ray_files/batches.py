"""Requests as they wait in a replica, and the model that computes several of them in one call."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]
# Sizes beyond 1, the powers of two and the largest are warmed up for so long at most.
_REST_S = 10.0


@dataclass(slots=True, eq=False)
class Item:
    """Rows of one request in a replica; times are seconds since the epoch."""

    feed: Arrays
    rows: int
    deadline: float
    arrived: float
    cancelled: bool = False

    def is_due(self, now: float) -> bool:
        """Whether somebody still waits for it."""
        return now < self.deadline and not self.cancelled


class Batches:
    """Calls of the model; `single_s` is the time of one row, which the warm-up measures."""

    def __init__(self, model: Any, bundle: Mapping[str, Any]) -> None:
        self._model, self._inputs = model, bundle["inputs"]
        self._batched: bool = bundle["batched"]
        self._warm: set[int] = set()
        self.single_s = 0.0

    def warm_up(self, largest: int) -> None:
        """Call the model with the batch sizes that will occur, which were not called yet."""
        largest = largest if self._batched else 1
        first = {1, largest, *(2**power for power in range(largest.bit_length()) if 2**power < largest)}
        until = time.monotonic() + _REST_S
        for size in [*sorted(first), *range(1, largest)]:
            if size not in self._warm and (size in first or time.monotonic() < until):
                seconds = [self._timed(size) for _ in range(5 if size == 1 else 2)]
                self._warm.add(size)
                if size == 1:
                    self.single_s = min(seconds)

    def _timed(self, rows: int) -> float:
        feed = {}
        for tensor in self._inputs:
            shape = [
                wanted if wanted > 0 else usual
                for wanted, usual in zip(tensor["shape"], tensor["usual"])
            ]
            if self._batched:
                shape[0] = rows
            feed[tensor["name"]] = np.zeros(shape, tensor["dtype"])
        start = time.perf_counter()
        self._model.run(feed)
        return time.perf_counter() - start

    def compute(self, items: Sequence[Item]) -> list[Arrays]:
        """The outputs of each item, computed in one call."""
        if len(items) == 1:
            return [self._model.run(items[0].feed)]
        names = items[0].feed
        outputs = self._model.run({n: np.concatenate([each.feed[n] for each in items]) for n in names})
        parts, at = [], 0
        for item in items:
            parts.append({name: array[at : at + item.rows] for name, array in outputs.items()})
            at += item.rows
        return parts
