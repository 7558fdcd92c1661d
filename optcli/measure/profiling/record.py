"""A profile: what is asked for, and what it says of where the time of one artifact goes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from optcli.artifact import Artifact
from optcli.data import DataSettings
from optcli.results import ArtifactSummary, Flag, Result
from optcli.settings import TensorSpec
from optcli.settings.postprocess import PostprocessSettings


@dataclass(frozen=True, kw_only=True)
class ProfileRequest:
    """An artifact, its runner, what to feed and where the Chrome trace goes.

    `variant`, `recipe` and `summary` are repeated in the profile. `data` are the settings of a role,
    with paths relative to `folder`; None: random inputs. `postprocess` is what follows the model.
    """

    variant: str
    recipe: str
    summary: ArtifactSummary
    artifact: Artifact
    runner: str
    options: dict[str, Any]
    inputs: tuple[TensorSpec, ...]
    batch_size: int
    trace: Path
    seed: int = 0
    data: DataSettings | None = None
    folder: Path = Path()
    postprocess: PostprocessSettings | None = None


SCHEMA = 2


class OperatorTime(Result):
    """One operator of the network as the runtime ran it.

    `time_ms` is for one call of the network, all its `calls` of this operator together; `share` is of
    a call's compute: `Profile.whole_ms`. `precision` is what it computes in, None where the
    profiler does not tell.
    """

    name: str
    type: str
    precision: str | None = None
    calls: float = 1.0
    time_ms: float
    share: float


class StageTime(Result):
    """One stage of serving a batch, measured without a profiler: the median of `samples` times.

    `read` (with decoding) and `prepare` go through the batch's samples one after the other, in one
    thread; `copy in`, `compute` and `copy out` are the three steps of a call; `post-process` is what
    the recipe makes of a batch's outputs.
    """

    name: str
    time_ms: float
    samples: int


class Finding(Result):
    """One thing that matters, with its figures, and one action. `share` is of the time it speaks of."""

    kind: Literal[
        "overhead", "quantize", "reformat", "decode", "copies", "hot", "opaque", "unexplained"
    ]
    share: float
    message: str
    action: str


class Profile(Result):
    """Where the time of one artifact goes, in one runner at one batch size.

    `wall_ms` is the compute step without a profiler, `profiled_ms` with it, `profiler_adds` the
    difference as a share of the first (None where noise hides it); both were timed in turns.
    `operators_ms` is the sum over `operators`, `outside_ms` what lies between them: the framework and
    its calls; `unexplained_ms` is what is left of `wall_ms`, below zero where the profiler makes
    operators slower. Walls are medians, operators the `statistic` over `calls` profiled calls:
    OpenVINO gives means only. `trace` is a file for chrome://tracing or Perfetto. `flags` say what to
    doubt.
    """

    schema_version: int = Field(SCHEMA, alias="schema")
    variant: str
    recipe: str
    artifact: ArtifactSummary
    runner: dict[str, Any]
    batch_size: int
    inputs: Literal["real samples", "random"]
    profiler: str | None
    statistic: Literal["median", "mean"] = "median"
    calls: int
    wall_ms: float
    profiled_ms: float | None = None
    profiler_adds: float | None = None
    operators_ms: float | None = None
    outside_ms: float | None = None
    unexplained_ms: float | None = None
    operators: tuple[OperatorTime, ...] = ()
    stages: tuple[StageTime, ...] = ()
    findings: tuple[Finding, ...] = ()
    trace: str | None = None
    measured_at: str
    notes: tuple[str, ...] = ()
    flags: tuple[Flag, ...] = ()

    @property
    def whole_ms(self) -> float:
        """The base of shares: compute without a profiler, or operators and outside if more."""
        return max(self.wall_ms, (self.operators_ms or 0.0) + (self.outside_ms or 0.0))

    def stage_ms(self, *names: str) -> float | None:
        """The sum of some stages; None where one of them was not measured."""
        times = {stage.name: stage.time_ms for stage in self.stages}
        return sum(times[name] for name in names) if all(name in times for name in names) else None
