"""Raw samples of a comparison, and the file they are kept in.

`samples.npz` holds one array `ns_0`, `ns_1`, ... per series, `[rows, calls]` nanoseconds as int64,
`device_ns_0`, ... where the device's own events were read, and `about`, a JSON text: `Measured` without
these arrays. A row is one round of one launch; which, say the
lists `launch` and `round` of the series with that number.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from optcli.files import regular_files
from optcli.measure.latency.messages import Command, HeldMemory, Round, WarmUp, ask
from optcli.measure.latency.plan import LaunchPlan
from optcli.workers import Child

if TYPE_CHECKING:
    import numpy as np

_VERSION = 2
# A turn takes many times its plan on a busy machine.
_SHORTEST_WAIT_S = 120.0
# Columns of a series with what a process says of each round.
OF_ROUNDS = ("cpu_ns", "switches", "steal_s", "waited_ns", "idle_cpu_ns", "first_feed")


@dataclass(frozen=True)
class LaunchStart:
    """What one launch of an artifact cost at one batch size before its first round.

    `warm_calls` came before it was steady; `steady` is None where nobody looked, `warm_s` what warming
    up took. `peak_memory_bytes` is the most the process held until the batch size was done, on GPUs
    `peak_gpu_memory_bytes` (None without one).
    """

    launch: int
    first_ms: float
    warm_calls: int
    steady: bool | None
    warm_s: float
    peak_memory_bytes: int | None
    peak_gpu_memory_bytes: int | None = None


@dataclass(frozen=True)
class Series:
    """All timed calls of one artifact at one batch size, in one group.

    `ns` holds nanoseconds, `[rows, calls]`. Row r is round `round[r]` of launch `launch[r]`, measured
    beside the same round of the others in the group. Its calls went through `feeds` distinct inputs in
    rotation, from number `first_feed[r]` on. What disturbed it: `switches` (involuntary ones),
    `steal_s`, and `waited_ns`, the time its threads were ready and had no processor. `idle_cpu_ns` is
    what the process computed while others had their turns. `device_ns`, shaped as `ns`, is what the
    same calls took on the device, computing alone; None where there was none. `region` says which of
    the two `ns` is.
    """

    name: str
    batch_size: int
    group: int
    ns: np.ndarray
    launch: tuple[int, ...]
    round: tuple[int, ...]
    cpu_ns: tuple[int, ...]
    switches: tuple[int, ...]
    steal_s: tuple[float, ...]
    waited_ns: tuple[int, ...]
    idle_cpu_ns: tuple[int, ...]
    first_feed: tuple[int, ...]
    feeds: int
    starts: tuple[LaunchStart, ...]
    device_ns: np.ndarray | None = None
    region: Literal["host", "device"] = "host"

    def on_device(self) -> Series | None:
        """The same calls in the region `device`; None where nothing was timed there."""
        if self.device_ns is None:
            return None
        return replace(self, ns=self.device_ns, device_ns=None, region="device")

    def only(self, launches: Collection[int]) -> Series:
        """The rounds of these launches alone."""
        return self.rows([row for row, launch in enumerate(self.launch) if launch in launches])

    def rows(self, rows: Sequence[int]) -> Series:
        """These rounds alone, by their numbers in `ns`."""
        chosen = list(rows)
        columns: dict[str, Any] = {}
        for name in ("launch", "round", *OF_ROUNDS):
            column = getattr(self, name)
            columns[name] = tuple(column[row] for row in chosen)
        return replace(
            self,
            ns=self.ns[chosen],
            device_ns=None if self.device_ns is None else self.device_ns[chosen],
            starts=tuple(start for start in self.starts if start.launch in columns["launch"]),
            **columns,
        )

    @property
    def rounds(self) -> list[np.ndarray]:
        """The rounds of all launches, in the order they were measured."""
        return list(self.ns)

    @property
    def launches(self) -> dict[int, list[np.ndarray]]:
        """The rounds of each launch."""
        rounds: dict[int, list[np.ndarray]] = {}
        for launch, row in zip(self.launch, self.ns, strict=True):
            rounds.setdefault(launch, []).append(row)
        return rounds

    def paired(self, other: Series) -> dict[int, list[tuple[np.ndarray, np.ndarray]]]:
        """By launch: the rounds that both have, side by side."""
        others = dict(zip(zip(other.launch, other.round, strict=True), other.ns, strict=True))
        pairs: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
        for launch, number, row in zip(self.launch, self.round, self.ns, strict=True):
            if (launch, number) in others:
                pairs.setdefault(launch, []).append((row, others[launch, number]))
        return pairs


@dataclass(frozen=True)
class OpenedArtifact:
    """How an artifact was opened: milliseconds by launch, threads, the runner's effective settings.

    `threads` were read back, `wanted_threads` were asked for. `environment` was set before any import.
    """

    import_ms: tuple[float, ...]
    load_ms: tuple[float, ...]
    threads: int
    effective: dict[str, Any]
    wanted_threads: int | None = None
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Measured:
    """One comparison: everything that was measured, how, and what could not be.

    `failures` says why an artifact has no (or not all) series, `skipped` why a batch size has none.
    `orders` is the order of turns: one list of names per round, by `group/launch/batch size`.
    `conditions` are the machine's `before` and `after`, `seconds` where the time went: `wall`,
    `opening`, `warm_up`, `timed`.
    """

    baseline: str
    measured_at: str
    settings: dict[str, Any]
    seed: int
    real_inputs: bool
    groups: tuple[tuple[str, ...], ...]
    lead_in: int
    series: tuple[Series, ...] = ()
    opened: dict[str, OpenedArtifact] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    skipped: dict[int, str] = field(default_factory=dict)
    orders: dict[str, list[list[str]]] = field(default_factory=dict)
    conditions: dict[str, dict[str, Any]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Every candidate, the baseline first."""
        return tuple(dict.fromkeys(name for group in self.groups for name in group))

    def of(self, name: str) -> list[Series]:
        """The series of an artifact, one per batch size, ascending; of the first group it was in."""
        first: dict[int, Series] = {}
        for series in self.series:
            if series.name == name:
                first.setdefault(series.batch_size, series)
        return [first[size] for size in sorted(first)]

    def paired_with(self, series: Series, name: str) -> Series | None:
        """The series of another artifact that was measured in turns with this one."""
        matches: Iterator[Series] = (
            other
            for other in self.series
            if (other.name, other.batch_size, other.group) == (name, series.batch_size, series.group)
        )
        return next(matches, None)


def save(measured: Measured, path: Path) -> None:
    """Write everything into one .npz: arrays `ns_0`, `ns_1`, ..., the rest as JSON in `about`."""
    import numpy as np

    about = asdict(measured)
    for each in about["series"]:
        del each["ns"], each["device_ns"]
    about["version"] = _VERSION
    arrays: dict[str, Any] = {f"ns_{index}": each.ns for index, each in enumerate(measured.series)}
    arrays |= {
        f"device_ns_{index}": each.device_ns
        for index, each in enumerate(measured.series)
        if each.device_ns is not None
    }
    with path.open("wb") as stream:
        np.savez_compressed(stream, about=np.array(json.dumps(about)), **arrays)


def load(path: Path) -> Measured:
    """What `save` wrote. Raises OSError, ValueError or KeyError for a file that it did not."""
    import numpy as np

    with regular_files.opened(path) as stream, np.load(stream, allow_pickle=False) as archive:
        about = json.loads(str(archive["about"]))
        if about.pop("version") != _VERSION:
            raise ValueError(f"{path} holds samples of another version of optcli")
        series = tuple(
            _series(each, archive[f"ns_{i}"], archive.get(f"device_ns_{i}"))
            for i, each in enumerate(about["series"])
        )
    return Measured(
        **{
            **about,
            "series": series,
            "groups": tuple(tuple(group) for group in about["groups"]),
            "opened": {name: OpenedArtifact(**_tupled(each)) for name, each in about["opened"].items()},
            "skipped": {int(size): why for size, why in about["skipped"].items()},
        }
    )


def _series(record: dict[str, Any], ns: np.ndarray, device_ns: np.ndarray | None) -> Series:
    starts = tuple(LaunchStart(**each) for each in record["starts"])
    return Series(**{**_tupled(record), "starts": starts, "ns": ns, "device_ns": device_ns})


def _tupled(record: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(item) if isinstance(item, list) else item for key, item in record.items()}


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

    def take_turn(self, child: Child, lead_in: int) -> None:
        """Time a round, after untimed calls. It is given up only when it looks like a hang."""
        command = Command("round", self.batch_size, self.plan.calls, lead_in=lead_in)
        longest_s = 20 * (self.plan.calls + lead_in) * self.usual_ns / 1e9
        self.add(ask(child, command, Round, max(_SHORTEST_WAIT_S, longest_s)))

    def end_launch(self, warm: WarmUp, held: HeldMemory) -> None:
        """What it cost before its first round; a launch without any is not kept."""
        if self._done:
            self.starts.append(
                LaunchStart(
                    launch=self._number,
                    first_ms=warm.first_ms,
                    warm_calls=warm.steady_after,
                    steady=warm.steady,
                    warm_s=warm.seconds,
                    peak_memory_bytes=held.peak_memory_bytes,
                    peak_gpu_memory_bytes=held.peak_gpu_memory_bytes,
                )
            )

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
