"""What is measured, together with what, how often and for how long."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optcli.artifact import Artifact
from optcli.results.statistics import needed
from optcli.settings import TensorSpec
from optcli.settings.latency import LatencySettings, SweepSettings

# A process with a runtime holds about this much beside its model; the model is held up to three
# times while it is loaded (file, parsed, packed for the kernels).
_RUNTIME_BYTES = 400 * 1024**2
_COPIES = 3
# A shorter round would measure single slices of the scheduler.
_SHORTEST_ROUND_NS = 20e6
_MOST_CALLS = 500
# In table and gate mode a round is longer where calls are not too many for it.
_ROUND_NS = 60e6
_USUAL_CALLS = 200
# What a table aims at: p99 with a useful interval, else p99 at all.
_TARGETS = (1000, needed(0.99))
# Rounds in which the machine was not quiet do not count; of those planned for p99 a third may be lost.
_SPARE = 1.5


@dataclass(frozen=True)
class Candidate:
    """An artifact to measure, under a variant's name, with a runner and its options.

    `names` are those that it has for the inputs, where they are others than the comparison's.
    `interpreter` is another Python to open it in, `serve` what its process runs instead of
    `optcli.measure.latency.process:serve` (a benchmark's process that is slower on purpose).
    """

    name: str
    artifact: Artifact
    runner: str
    options: Mapping[str, Any] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    interpreter: str | None = None
    serve: str = "optcli.measure.latency.process:serve"


@dataclass(frozen=True)
class LatencyOrder:
    """Artifacts to measure beside each other, the baseline among them by its name.

    `feeds` is an .npz with arrays `[n, ...]` of prepared samples by input name; without it inputs are
    random. `wants_p99`: as many calls as p99 takes, where the time cap allows.
    """

    candidates: tuple[Candidate, ...]
    baseline: str
    inputs: tuple[TensorSpec, ...]
    feeds: Path | None
    settings: LatencySettings
    seed: int
    wants_p99: bool = False


@dataclass(frozen=True)
class SweepOrder:
    """An artifact to measure over batch sizes; `feeds` as in `LatencyOrder`.

    With `p99_ms`, in milliseconds, the sweep goes on until that is passed and its time goes first into
    the sizes that decide it.
    """

    candidate: Candidate
    inputs: tuple[TensorSpec, ...]
    feeds: Path | None
    settings: SweepSettings
    seed: int
    p99_ms: float | None = None


@dataclass(frozen=True)
class LaunchPlan:
    """How many rounds in each launch and how many timed calls in each round."""

    rounds: int
    calls: int


def plan(call_ns: float, settings: LatencySettings, wants_p99: bool) -> LaunchPlan:
    """As many calls as asked for, more where they are cheap or p99 is wanted, fewer at the time cap.

    A round lasts 20 ms at least, in table and gate mode 60 ms unless that takes more than 200 calls. A
    table has 1000 samples where the cap allows, else 368 (for p99). Where `quick` wants p99 it has half
    as many again, so that p99 is still told when some rounds do not count.
    """
    rounds = settings.rounds
    total = rounds * settings.launches
    affordable = int(settings.max_seconds * 1e9 / call_ns)
    calls = max(settings.calls, min(math.ceil(_SHORTEST_ROUND_NS / call_ns), _MOST_CALLS))
    if settings.mode != "quick":
        calls = max(calls, min(math.ceil(_ROUND_NS / call_ns), _USUAL_CALLS))
    for samples in _targets(settings, total, wants_p99, affordable):
        enough = math.ceil(samples / total)
        if enough * total <= affordable:
            calls = max(calls, enough)
            break
    least_rounds = max(2, affordable // settings.launches)
    return LaunchPlan(min(rounds, least_rounds), max(1, min(calls, affordable // total)))


def _targets(settings: LatencySettings, rounds: int, wants_p99: bool, affordable: int) -> Sequence[int]:
    """Numbers of samples to try for in all rounds, the best first."""
    if settings.mode == "table":
        return _TARGETS
    if settings.mode == "quick":
        # As many as the cap allows where p99 is asked for, else only where p99 is cheap.
        enough = math.ceil(needed(0.99) / rounds) * rounds
        spare = math.ceil(_SPARE * enough / rounds) * rounds
        if wants_p99:
            return (spare, min(enough, affordable // rounds * rounds))
        return (spare,) if enough <= affordable / 4 else ()
    return ()


def groups(
    candidates: Sequence[Candidate], baseline: str, budget_bytes: int
) -> tuple[tuple[Candidate, ...], ...]:
    """Candidates that fit in memory together, in order, the baseline first in every group."""
    base = [candidate for candidate in candidates if candidate.name == baseline]
    base_bytes = sum(_estimate_bytes(candidate) for candidate in base)
    grouped: list[list[Candidate]] = [[]]
    free = budget_bytes - base_bytes
    for candidate in candidates:
        if candidate.name == baseline:
            continue
        if grouped[-1] and _estimate_bytes(candidate) > free:
            grouped.append([])
            free = budget_bytes - base_bytes
        grouped[-1].append(candidate)
        free -= _estimate_bytes(candidate)
    return tuple((*base, *group) for group in grouped)


def _estimate_bytes(candidate: Candidate) -> int:
    """What its process may hold. Compiled for several batch sizes, the weights are packed for each."""
    options = candidate.options
    sizes = options.get("batch_sizes") if options.get("shapes") == "static" else None
    copies = _COPIES + max(0, len(sizes or ()) - 1)
    return _RUNTIME_BYTES + copies * candidate.artifact.size_bytes
