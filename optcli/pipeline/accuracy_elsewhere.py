"""What `pipeline.accuracy` asks of other machines: to evaluate parts of a set with the same result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from optcli import accuracy
from optcli.artifact import Artifact
from optcli.runners import Runner


@dataclass(frozen=True)
class Asked:
    """What other machines must know of an evaluation to do parts of it with the same result.

    `ingredients` are those of its key, `samples` is the key of the samples, `references` name the
    user's code that judges. `scratch` is a folder for what is tried.
    """

    step: str
    key: str
    artifact: Artifact
    runner: Runner
    threads: int
    ingredients: Mapping[str, Any]
    samples: str
    references: tuple[str, ...]
    log: Path
    scratch: Path
    timeout_s: float


class Nodes(Protocol):
    """Machines that evaluate parts of sample sets."""

    def evaluating(self, asked: Asked) -> accuracy.Elsewhere | None:
        """Those that do; None where there are none."""
