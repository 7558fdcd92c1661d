"""A candidate: the passes and the runner that one trial builds, written as a recipe has them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from optcli.results.tuning import TuningTrial

Use = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class TrialCandidate:
    """What a variant of a recipe says: passes in order, each with its options, and the runner.

    `label` is what people read. `parameters` are what the search chose, from which this was made.
    """

    passes: tuple[Use, ...]
    runner: Mapping[str, Any] | None
    label: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        """What tells two candidates apart, however the search came to them."""
        return json.dumps([self.passes, self.runner], sort_keys=True)

    @property
    def trains(self) -> bool:
        """Whether a pass of it trains."""
        return any(name in ("finetune", "quantize_aware") for name, _ in self.passes)

    def written(self) -> dict[str, Any]:
        """The variant as a recipe may have it."""
        return written(self.passes, self.runner)


def written(passes: tuple[Any, ...], runner: Mapping[str, Any] | None) -> dict[str, Any]:
    """A variant as a recipe may have it, from passes with options and a runner."""
    uses = [{name: options} if options else name for name, options in passes]
    return {"passes": uses, **({"runner": dict(runner)} if runner else {})}


def candidate_of(trial: TuningTrial) -> TrialCandidate:
    """The candidate that a recorded trial was about."""
    passes = tuple((str(name), dict(options)) for name, options in trial.passes)
    return TrialCandidate(passes, trial.runner, trial.label, trial.parameters)
