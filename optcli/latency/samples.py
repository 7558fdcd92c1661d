"""Raw samples of a comparison, and the file they are kept in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

_VERSION = 1


@dataclass(frozen=True)
class Series:
    """All timed calls of one artifact at one batch size, in one group.

    `ns` holds nanoseconds, `[rounds, calls]`; row r was measured beside row r of the others in the
    group. `switches` (involuntary context switches) and `steal_s` say what disturbed each round.
    """

    name: str
    batch_size: int
    group: int
    ns: np.ndarray
    cpu_ns: tuple[int, ...]
    switches: tuple[int, ...]
    steal_s: tuple[float, ...]
    first_ms: float
    warm_calls: int
    peak_memory_bytes: int | None

    @property
    def rounds(self) -> list[np.ndarray]:
        """The rounds in the order they were measured."""
        return list(self.ns)


@dataclass(frozen=True)
class Opened:
    """How an artifact was opened: milliseconds, threads, and the runner's effective settings.

    `threads` were read back, `wanted_threads` were asked for.
    """

    import_ms: float
    load_ms: float
    threads: int
    effective: dict[str, Any]
    wanted_threads: int | None = None


@dataclass(frozen=True)
class Measured:
    """One comparison: everything that was measured, how, and what could not be.

    `failures` says why an artifact has no (or not all) series, `skipped` why a batch size has none.
    `orders` is the order of turns: one list of names per round, by `group/batch size`.
    """

    baseline: str
    measured_at: str
    settings: dict[str, Any]
    seed: int
    real_inputs: bool
    groups: tuple[tuple[str, ...], ...]
    lead_in: int
    series: tuple[Series, ...] = ()
    opened: dict[str, Opened] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    skipped: dict[int, str] = field(default_factory=dict)
    orders: dict[str, list[list[str]]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Every candidate, the baseline first."""
        return tuple(dict.fromkeys(name for group in self.groups for name in group))

    def of(self, name: str) -> list[Series]:
        """The series of an artifact, one per batch size, ascending; of the first group it was in."""
        first: dict[int, Series] = {}
        for each in self.series:
            if each.name == name:
                first.setdefault(each.batch_size, each)
        return [first[size] for size in sorted(first)]

    def beside(self, series: Series, name: str) -> Series | None:
        """The series of another artifact that was measured in turns with this one."""
        found: Iterator[Series] = (
            each
            for each in self.series
            if (each.name, each.batch_size, each.group) == (name, series.batch_size, series.group)
        )
        return next(found, None)


def save(measured: Measured, path: Path) -> None:
    """Write everything into one .npz: arrays `ns_0`, `ns_1`, ..., the rest as JSON in `about`."""
    import numpy as np

    about = asdict(measured)
    for each in about["series"]:
        del each["ns"]
    about["version"] = _VERSION
    arrays: dict[str, Any] = {f"ns_{index}": each.ns for index, each in enumerate(measured.series)}
    with path.open("wb") as stream:
        np.savez_compressed(stream, about=np.array(json.dumps(about)), **arrays)


def load(path: Path) -> Measured:
    """What `save` wrote. Raises OSError, ValueError or KeyError for a file that it did not."""
    import numpy as np

    with np.load(path, allow_pickle=False) as archive:
        about = json.loads(str(archive["about"]))
        if about.pop("version") != _VERSION:
            raise ValueError(f"{path} holds samples of another version of optcli")
        series = tuple(_series(each, archive[f"ns_{i}"]) for i, each in enumerate(about["series"]))
    return Measured(
        **{
            **about,
            "series": series,
            "groups": tuple(tuple(group) for group in about["groups"]),
            "opened": {name: Opened(**each) for name, each in about["opened"].items()},
            "skipped": {int(size): why for size, why in about["skipped"].items()},
        }
    )


def _series(record: dict[str, Any], ns: np.ndarray) -> Series:
    lists = {key: tuple(record[key]) for key in ("cpu_ns", "switches", "steal_s")}
    return Series(**{**record, **lists, "ns": ns})
