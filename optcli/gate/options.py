"""How the gate runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from optcli.results.gate import ChangeKind


@dataclass(frozen=True)
class Options:
    """How the gate runs; what it demands stands in the recipe.

    `only` names variants to judge instead of those marked `gate: true`. `baseline_python` is the
    interpreter (or its virtual environment) for the baseline. `history` is a file to append to.
    `accept` are the changes of what the candidate is judged by that whoever runs the gate declares.
    """

    only: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()
    jobs: int = 1
    timeout_s: float = 3600.0
    trust: bool = False
    baseline_python: Path | None = None
    against_recorded: bool = False
    on_inconclusive: Literal["fail", "pass"] | None = None
    confirm: bool | None = None
    history: Path | None = None
    accept: frozenset[ChangeKind] = frozenset()
