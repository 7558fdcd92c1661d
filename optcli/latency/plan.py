"""What is measured together, how often and for how long."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from optcli.artifact import Artifact
from optcli.settings import LatencySettings
from optcli.statistics import needed

# A process with a runtime holds about this much beside its model; the model is held up to three
# times while it is loaded (file, parsed, packed for the kernels).
_RUNTIME_BYTES = 400 * 1024**2
_COPIES = 3
_SHORTEST_ROUND_NS = 20e6
_MOST_CALLS = 500


@dataclass(frozen=True)
class Candidate:
    """An artifact to measure, under a variant's name, with a runner and its options."""

    name: str
    artifact: Artifact
    runner: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """How many rounds and how many timed calls in each."""

    rounds: int
    calls: int


def plan(call_ns: float, settings: LatencySettings, wants_p99: bool) -> Plan:
    """As many calls as asked for, more where they are cheap or p99 is wanted, fewer at the time cap.

    A round lasts 20 ms at least: shorter ones would measure single slices of the scheduler.
    """
    rounds = settings.rounds
    affordable = int(settings.max_seconds * 1e9 / call_ns)
    calls = max(settings.calls, min(math.ceil(_SHORTEST_ROUND_NS / call_ns), _MOST_CALLS))
    enough = math.ceil(needed(0.99) / rounds)
    if wants_p99 or enough * rounds <= affordable / 4:
        calls = max(calls, enough)
    return Plan(min(rounds, max(2, affordable)), max(1, min(calls, affordable // rounds)))


def groups(
    candidates: Sequence[Candidate], baseline: str, budget_bytes: int
) -> tuple[tuple[Candidate, ...], ...]:
    """Candidates that fit in memory together, in order, the baseline first in every group."""
    base = [each for each in candidates if each.name == baseline]
    taken = sum(_estimate_bytes(each) for each in base)
    found: list[list[Candidate]] = [[]]
    free = budget_bytes - taken
    for each in candidates:
        if each.name == baseline:
            continue
        if found[-1] and _estimate_bytes(each) > free:
            found.append([])
            free = budget_bytes - taken
        found[-1].append(each)
        free -= _estimate_bytes(each)
    return tuple((*base, *group) for group in found)


def _estimate_bytes(candidate: Candidate) -> int:
    return _RUNTIME_BYTES + _COPIES * candidate.artifact.size_bytes
