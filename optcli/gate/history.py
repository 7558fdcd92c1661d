"""The gate's history: one line of JSON for every run, and where a series of them changed.

A history informs and never decides: its figures were measured at different times. Those of different
machines are never put in one series.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import BinaryIO

from optcli import environment
from optcli.errors import InputError, OptcliError
from optcli.files import regular_files
from optcli.files.digest import of_value
from optcli.gate import baselines
from optcli.results.gate import GateReport, HistoryEntry, Trend
from optcli.store import disk
from optcli.store.locks import held

# A step must last this many runs to be one; fewer are outliers.
_SHORTEST = 3
_LONGEST_LINE_BYTES = 1024**2


def append(path: Path, report: GateReport, commit: str | None = None) -> int:
    """Add a run's figures to a history; gives how many. Raises `StoreError` where the disk refuses."""
    lines = [entry.model_dump_json() for entry in entries_of(report, commit)]
    with disk.failures(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with held(path.with_name(f".{path.name}.lock")), path.open("a+b") as stream:
            _drop_torn_line(stream)
            stream.write("".join(f"{line}\n" for line in lines).encode())
            stream.flush()
            os.fsync(stream.fileno())
    return len(lines)


def _drop_torn_line(stream: BinaryIO) -> None:
    """Remove a last line without its end: what a killed run has not finished."""
    size = stream.seek(0, os.SEEK_END)
    start = stream.seek(max(0, size - _LONGEST_LINE_BYTES))
    tail = stream.read()
    stream.truncate(start + tail.rfind(b"\n") + 1)
    stream.seek(0, os.SEEK_END)


def entries_of(report: GateReport, commit: str | None = None) -> list[HistoryEntry]:
    """What a run adds to a history: every figure that has a value."""
    return [
        HistoryEntry(
            at=report.finished,
            recipe=report.recipe.name,
            commit=commit,
            baseline=report.baseline,
            variant=name,
            metric=each.name,
            batch_size=each.batch_size,
            unit=each.unit,
            value=each.candidate,
            change=None if each.change is None else each.change.value,
            outcome=each.outcome,
            machine=_machine(report, each.device),
        )
        for name, variant in report.variants.items()
        for each in variant.comparisons
        if each.candidate is not None
    ]


def _machine(report: GateReport, device: str | None) -> str:
    """A digest of the machine that a figure was found on."""
    described = report.environment if device is None else report.devices.get(device, {})
    cpu, host = (described.get(name) or {} for name in ("cpu", "machine"))
    hardware = [host.get(name) for name in environment.HARDWARE]
    threads = report.protocol.get("threads")
    return of_value([cpu.get("model"), hardware, described.get("cores"), threads])[:12]


def load(path: Path) -> list[HistoryEntry]:
    """Every entry of a history, in order. Raises `InputError` for a file that is none.

    A last line that a killed run has not finished is left out.
    """
    try:
        lines = regular_files.read(path, regular_files.MOST_JSON_BYTES).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            "there is no history here yet" if not path.exists() else f"it cannot be read: {error}",
            place=str(path),
            hint="run `optcli gate ... --history FILE` to begin one",
        ) from error
    entries = []
    for number, line in enumerate(lines, 1):
        try:
            entries.append(HistoryEntry.model_validate(json.loads(line)))
        except (ValueError, RecursionError) as error:
            if number < len(lines):
                raise InputError(
                    "this line is no entry of a history",
                    place=f"{path}:{number}",
                    hint="remove it, or name the file that `optcli gate --history` wrote",
                ) from error
    return entries


def trends(entries: Iterable[HistoryEntry]) -> list[Trend]:
    """One trend for each figure of each variant on each machine, in order of first appearance."""
    groups: dict[tuple[str, str, str, int | None, str, str], list[HistoryEntry]] = defaultdict(list)
    for each in entries:
        key = (each.recipe, each.variant, each.metric, each.batch_size, each.unit, each.machine)
        groups[key].append(each)
    trends = []
    for key, group in groups.items():
        values = [each.value for each in group]
        steps = change_points(values)
        latest, earliest = leaving(values, steps), None if steps else leaving(values[::-1], [])
        trends.append(Trend(*key, tuple(group), tuple(steps), 2 * _SHORTEST, latest, earliest))
    return trends


def leaving(values: Sequence[float], steps: Sequence[int]) -> float | None:
    """By how much the last value lies off the level that it should belong to; None where it does not.

    Off is more than four robust standard deviations (from the median absolute deviation, 0.5 % at
    least) of the values since the last step; the newest, which may be another level, are left out.
    """
    level = values[steps[-1] if steps else 0 : 1 - _SHORTEST] if len(values) > 1 else values
    if len(level) < _SHORTEST or min(values) <= 0:
        return None
    middle = median(level)
    sigma = max(1.4826 * median(abs(each / middle - 1) for each in level), 0.005)
    growth = values[-1] / middle - 1
    return growth if abs(growth) > 4 * sigma else None


def change_points(values: Sequence[float]) -> list[int]:
    """Indices at which the level of a series changes and stays so for three values at least.

    Optimal partitioning of the values' logarithms by absolute distances to medians, which single
    outliers do not move (B. Jackson and others, An algorithm for optimal partitioning of data on an
    interval, IEEE Signal Processing Letters 12 (2005) 105-108) with the penalty 2 σ ln n, so chosen
    that one of 40 series of 30 values of noise has a step at most; σ from the median absolute
    difference of neighbours, 0.5 % at least.
    """
    import numpy as np

    count = len(values)
    if count < 2 * _SHORTEST or min(values) <= 0:
        return []
    logs = np.log(np.asarray(values, dtype=float))
    # The difference of two has twice the variance; 0.6745 turns a median deviation into σ.
    noise = float(np.median(np.abs(np.diff(logs)))) / 0.6745 / np.sqrt(2)
    penalty = 2 * max(noise, 0.005) * np.log(count)
    # For each end of a level: the least cost of all values before it, and where that level starts.
    best: dict[int, tuple[float, int]] = {0: (0.0, 0)}
    for end in range(_SHORTEST, count + 1):
        costs = [
            (cost + float(np.abs(logs[start:end] - np.median(logs[start:end])).sum()) + penalty, start)
            for start, (cost, _) in best.items()
            if end - start >= _SHORTEST
        ]
        best[end] = min(costs)
    steps, start = [], best[count][1]
    while start:
        steps.append(start)
        start = best[start][1]
    return steps[::-1]


def current_commit(recipe: Path) -> str | None:
    """The commit that is checked out where a recipe lies; None where there is no git."""
    try:
        return baselines.commit_of(recipe, "HEAD")[1]
    except OptcliError:
        return None
