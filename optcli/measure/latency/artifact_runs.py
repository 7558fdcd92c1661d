"""One artifact's part in a comparison at one batch size: its plan and its rounds so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from optcli.measure.latency.messages import Round
from optcli.measure.latency.plan import LaunchPlan
from optcli.measure.latency.samples import OF_ROUNDS, LaunchStart, Series


@dataclass
class ArtifactRun:
    """Rows of rounds, over all launches; `rows` holds what the process answered, in order."""

    name: str
    batch_size: int
    group: int
    plan: LaunchPlan
    rows: list[Round] = field(default_factory=list)
    launch: list[int] = field(default_factory=list)
    round: list[int] = field(default_factory=list)
    starts: list[LaunchStart] = field(default_factory=list)
    usual_ns: float = 0.0

    def begin_launch(self, number: int, usual_ns: float) -> None:
        """A fresh process, whose calls take about `usual_ns`."""
        self._number, self._spent_s, self._done = number, 0.0, 0
        self.usual_ns = usual_ns

    def wants_more(self, number: int, cap_s: float) -> bool:
        """Whether there is a round `number` in this launch; two there are, whatever they take."""
        return number < self.plan.rounds and (number < 2 or self._spent_s < cap_s)

    def add(self, row: Round) -> None:
        """A round of this launch."""
        self.rows.append(row)
        self.launch.append(self._number)
        self.round.append(self._done)
        self._done += 1
        self._spent_s += sum(row.ns) / 1e9

    def end_launch(self, start: LaunchStart) -> None:
        """What it cost before its first round; a launch without any is not kept."""
        if self._done:
            self.starts.append(start)

    def series(self) -> Series:
        """All of it, as raw samples."""
        import numpy as np

        on_device = [row.device_ns for row in self.rows]
        columns: dict[str, Any] = {}
        for name in OF_ROUNDS:
            columns[name] = tuple(getattr(row, name) for row in self.rows)
        return Series(
            name=self.name,
            batch_size=self.batch_size,
            group=self.group,
            ns=np.array([row.ns for row in self.rows], dtype=np.int64),
            device_ns=None if None in on_device else np.array(on_device, dtype=np.int64),
            launch=tuple(self.launch),
            round=tuple(self.round),
            feeds=self.rows[0].feeds,
            starts=tuple(self.starts),
            **columns,
        )
