"""One run of the gate: what every part of it knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from optcli.gate.baselines import Baseline
from optcli.gate.origins import GateRun, Origin
from optcli.observer import Observer
from optcli.pipeline.making import Made
from optcli.pipeline.places import HERE, Place
from optcli.results.gate import Change, ChangeKind
from optcli.settings.gate import GateSettings
from optcli.settings.slo import SloSettings
from optcli.store import Store


@dataclass
class Gating:
    """One run of the gate: both sides, what is demanded, and what was spent.

    `settings` and `slo` are what both sides demand; `changes` how the terms of the two differ. `places`
    are the devices whose latency decides. `samples` says by role how the settings of the data that
    artifacts are made with differ.
    """

    made: Made
    before: Baseline
    origin: Origin
    settings: GateSettings
    slo: SloSettings | None
    changes: Sequence[Change]
    options: GateRun
    store: Store
    folder: Path
    observer: Observer
    places: tuple[Place, ...] = (HERE,)
    samples: Mapping[str, Sequence[str]] = field(default_factory=dict)
    seconds: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def declared(self) -> frozenset[ChangeKind]:
        """The kinds of change that whoever runs the gate accepts."""
        return self.options.accept

    @property
    def logs(self) -> Path:
        """Where the measuring processes write."""
        return self.folder / "logs"
