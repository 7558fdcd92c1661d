"""Calls of the model: rows of several requests are computed together, and each gets its outputs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from oip import Arrays, Refused


@dataclass(slots=True, eq=False)
class Item:
    """Rows of one request; times are seconds since the epoch."""

    feed: Arrays
    rows: int
    deadline: float
    arrived: float
    cancelled: bool = False


class Batches:
    """Calls of one replica's model, which `metrics` counts."""

    def __init__(self, model: Any, bundle: Mapping[str, Any], metrics: Any) -> None:
        self._model, self._metrics = model, metrics
        self._inputs, self._batched = bundle["inputs"], bundle["batched"]

    def warm_up(self, largest: int) -> None:
        """Call the model with 1, the powers of two and the largest batch, each twice."""
        largest = largest if self._batched else 1
        sizes = {1, largest, *(2**power for power in range((largest - 1).bit_length()))}
        for size in sorted(sizes):
            feed = {}
            for each in self._inputs:
                shape = [size, *each["usual"][1:]] if self._batched else each["usual"]
                feed[each["name"]] = np.zeros(shape, each["dtype"])
            for _ in range(2):
                self._model.run(feed)

    def call(self, items: Sequence[Item], sealed: float) -> list[Arrays | Refused]:
        """Compute items that were sealed as a batch; for each its outputs, or why there are none.

        Those that are late, or that nobody waits for, are left out. Where a call fails, or items are of
        other sizes, each is computed by itself: an input that the model cannot take costs its own
        request alone.
        """
        start = time.time()
        due = [each for each in items if start < each.deadline and not each.cancelled]
        results = dict(zip(map(id, due), self._compute(due) if due else [], strict=True))
        end = time.time()
        rows = sum(each.rows for each in due if not isinstance(results[id(each)], Refused))
        for each in due:
            self._metrics.stage(stage="batch_wait").observe(sealed - each.arrived)
            self._metrics.stage(stage="queue").observe(start - sealed)
            self._metrics.stage(stage="compute").observe(end - start)
        if rows:
            self._metrics.compute(batch=str(rows)).observe(end - start)
        return [results.get(id(each)) or Refused.late() for each in items]

    def _compute(self, items: Sequence[Item]) -> list[Arrays | Refused]:
        try:
            feed = items[0].feed
            if len(items) > 1:
                feed = {n: np.concatenate([each.feed[n] for each in items]) for n in feed}
            outputs = self._model.run(feed)
        except Exception as error:  # runtimes raise kinds of their own
            if len(items) > 1:
                return [result for item in items for result in self._compute([item])]
            reason = str(error).partition("\n")[0] or type(error).__name__
            return [Refused(500, f"the model failed: {reason}")]
        if len(items) == 1:
            return [outputs]
        ends = np.cumsum([each.rows for each in items])
        return [
            {name: array[end - each.rows : end] for name, array in outputs.items()}
            for each, end in zip(items, ends, strict=True)
        ]
