"""Requests as they wait in a replica, and the model that computes several of them in one call."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from metrics import usage

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
    """Calls of the model, and how long to wait for a batch; `single_s` is the time of one row."""

    def __init__(self, model: Any, bundle: Mapping[str, Any]) -> None:
        self._model, self._inputs = model, bundle["inputs"]
        self._batched: bool = bundle["batched"]
        self._warm: set[int] = set()
        self._wait_s, self._adaptive = 0.0, False
        self._last, self._gap_s, self._inside = 0.0, 0.0, 0
        self.single_s = 0.0

    def configure(self, config: Mapping[str, Any]) -> None:
        """Take `user_config` of serve_config.yaml."""
        self._wait_s, self._adaptive = config["batch_wait_timeout_s"], config["adaptive_wait"]
        self._warm_up(config["max_batch_size"])

    def arrives(self, now: float) -> float:
        """Count a request in; how long to wait for a batch, in seconds: not at all under light load.

        That is while single rows would take less than half of the time, by the gaps between requests,
        and nothing waits but for what is computed.
        """
        self._inside += 1
        gap = min(now - self._last, 8 * self.single_s)
        self._last, self._gap_s = now, self._gap_s + 0.1 * (gap - self._gap_s)
        light = self._adaptive and self._gap_s > 2 * self.single_s and self._inside <= 2
        return 0.0 if light else self._wait_s

    def leaves(self) -> None:
        """Count a request out."""
        self._inside -= 1

    def call(self, items: Sequence[Item], sealed: float, identity: str) -> list[dict[str, Any]]:
        """Compute the items that somebody still waits for, as one batch; for each, outputs and times.

        `outputs` is None for the others, and where the model failed: `failed` says why. Items of other
        sizes are a batch of their own. The first result counts the call, and what the process used.
        """
        start = time.time()
        due = [item for item in items if item.is_due(start)]
        outputs: dict[int, Arrays] = {}
        failed: dict[int, str] = {}
        for alike in _of_one_size(due):
            self._compute(alike, outputs, failed)
        call: dict[str, Any] = {
            "start": start,
            "end": time.time(),
            "sealed": sealed,
            "replica": identity,
        }
        rows = sum(item.rows for item in due if id(item) in outputs)
        if rows == 1:
            self.single_s += 0.1 * (call["end"] - start - self.single_s)
        results = [
            {
                **call,
                "arrived": each.arrived,
                "outputs": outputs.get(id(each)),
                "failed": failed.get(id(each)),
            }
            for each in items
        ]
        results[0].update(rows=rows, usage=usage())
        return results

    def _compute(
        self, items: Sequence[Item], outputs: dict[int, Arrays], failed: dict[int, str]
    ) -> None:
        """Add the outputs of items of one size. Where the call fails each is computed by itself.

        An input that the model cannot take, such as an unknown token, then costs its own request alone.
        """
        try:
            outputs.update(zip(map(id, items), self._outputs(items), strict=True))
        except Exception as error:  # runtimes raise kinds of their own
            for item in items if len(items) > 1 else ():
                self._compute([item], outputs, failed)
            if len(items) == 1:
                failed[id(items[0])] = str(error).partition("\n")[0] or type(error).__name__

    def _outputs(self, items: Sequence[Item]) -> list[Arrays]:
        if len(items) == 1:
            return [self._model.run(items[0].feed)]
        names = items[0].feed
        outputs = self._model.run({n: np.concatenate([each.feed[n] for each in items]) for n in names})
        parts: list[Arrays] = []
        at = 0
        for item in items:
            parts.append({name: array[at : at + item.rows] for name, array in outputs.items()})
            at += item.rows
        return parts

    def _warm_up(self, largest: int) -> None:
        """Call the model with the batch sizes that will occur, which were not called yet."""
        largest = largest if self._batched else 1
        powers = (2**power for power in range(largest.bit_length()))
        first = {1, largest, *(size for size in powers if size < largest)}
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
            shape = [rows, *tensor["usual"][1:]] if self._batched else tensor["usual"]
            feed[tensor["name"]] = np.zeros(shape, tensor["dtype"])
        start = time.perf_counter()
        self._model.run(feed)
        return time.perf_counter() - start


def _of_one_size(items: Iterable[Item]) -> Iterable[list[Item]]:
    """The items in groups whose inputs have the same sizes, but for the rows."""
    groups: dict[tuple[tuple[int, ...], ...], list[Item]] = {}
    for item in items:
        sizes = tuple(item.feed[name].shape[1:] for name in sorted(item.feed))
        groups.setdefault(sizes, []).append(item)
    return groups.values()
