"""Statistics of inputs that are drawn at random, for `optcli loadtest --drift`. No input is kept.

Each day has a uniform sample of its rows (J. S. Vitter, Random sampling with a reservoir, ACM
Transactions on Mathematical Software 11 (1985) 37-57, algorithm R). Today's and yesterday's are in
memory. Ray spreads requests at random, so that what one replica sees is a sample of all.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import input_statistics
import numpy as np

PERIOD_S = 86_400.0
_PERIODS = 2


@dataclass
class Period:
    """A sample, by place, of the `seen` rows that came since `begun` (seconds since the epoch)."""

    begun: float
    seen: int = 0
    rows: dict[int, Sequence[np.ndarray]] = field(default_factory=dict)


class Kept:
    """The samples of one replica. `offer` is for the event loop: it draws, a thread does the rest."""

    def __init__(self, reference: input_statistics.Statistics, most: int) -> None:
        self._reference, self._most = reference, most
        self._hows: list[dict[str, Any]] = reference.about["inputs"]
        self._periods = [Period(time.time())]
        self._draw = random.Random()  # noqa: S311
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="inputs")

    def offer(self, feed: Mapping[str, np.ndarray]) -> None:
        """Count a request's rows, and keep the statistics of those that are drawn."""
        if time.time() - self._periods[-1].begun >= PERIOD_S:
            self._periods = [*self._periods, Period(time.time())][-_PERIODS:]
        period, drawn = self._periods[-1], {}
        for row in range(min(map(len, feed.values()))):
            place = period.seen
            period.seen += 1
            if place >= self._most:
                place = self._draw.randrange(period.seen)
            if place < self._most:
                drawn[place] = row
        if drawn:
            self.thread.submit(self._keep, period, feed, drawn)

    def _keep(self, period: Period, feed: Mapping[str, np.ndarray], drawn: Mapping[int, int]) -> None:
        for place, row in drawn.items():
            period.rows[place] = input_statistics.of_rows(feed, row, self._hows)

    def content(self) -> bytes:
        """The reference, and what is kept, as a file has it."""
        periods = self._periods
        begun = [{"begun": each.begun, "seen": each.seen} for each in periods]
        about = {**self._reference.about, "periods": begun, "written": time.time()}
        matrices = []
        for rows in (list(each.rows.values()) for each in periods):
            of = [np.array([row[at] for row in rows], np.float32) for at in range(len(self._hows))]
            columns = (len(input_statistics.names(how)) for how in self._hows)
            matrices.append([each.reshape(-1, count) for each, count in zip(of, columns, strict=True)])
        return input_statistics.Statistics(about, self._reference.reference, matrices).packed()


def extend(server: Any, folder: Path) -> None:
    """Sample what the replica of app.py computes, and let it give the statistics."""
    most = json.loads((folder / "bundle.json").read_text())["sample_inputs"]
    content = (folder / input_statistics.REFERENCE).read_bytes()
    kept, compute = Kept(input_statistics.unpacked(content), most), server.computed

    async def computed(request: Any, deadline: float) -> Any:
        outputs = await compute(request, deadline)
        kept.offer(request.feed)
        return outputs

    server.computed = server.outputs = computed
    server.pages[f"{server.protocol.path}/inputs"] = kept.content
