"""What the merge gate judges by, and what it found out: comparisons, and one answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from pydantic import Field, FiniteFloat

from optcli.results import Estimate, Flag, Outcome, RecipeSummary
from optcli.results.outcomes import Result
from optcli.settings import TensorSpec
from optcli.settings.accuracy import AccuracySettings
from optcli.settings.gate import GateSettings
from optcli.settings.slo import SloSettings


class VariantTerms(Result):
    """How one variant takes part: marked for the gate or not, and the threads that it names."""

    gate: bool = False
    threads: int | None = None


class Terms(Result):
    """The terms of a judgement.

    `evaluation` is how the samples are chosen and the digest of their `content` (files and labels),
    None without evaluation data; `preparation` and `postprocess` are their settings. `samples` are the
    settings of the other roles' data, which judge nothing: they say what a change of samples was.
    `code` holds digests of the user's own files that judge: `metric`, `postprocess`, `data.evaluation`.
    `threads` is what the recipe says under `latency`; `baseline` names its float variant. `devices` are
    those of `gate.devices`, as the recipe describes them.
    """

    evaluation: dict[str, Any] | None = None
    preparation: dict[str, Any] | None = None
    postprocess: dict[str, Any] | None = None
    samples: dict[str, dict[str, Any]] = Field(default_factory=dict)
    accuracy: AccuracySettings | None = None
    slo: SloSettings | None = None
    gate: GateSettings = GateSettings()
    inputs: tuple[TensorSpec, ...] = ()
    code: dict[str, str] = Field(default_factory=dict)
    threads: int | None = None
    baseline: str
    devices: dict[str, Any] = Field(default_factory=dict)
    variants: dict[str, VariantTerms] = Field(default_factory=dict)


SCHEMA = 2

Metric = Literal["p50", "p95", "p99", "size", "memory", "accuracy", "outputs", "slo"]
Unit = Literal["ms", "bytes", "fraction"]
# Parts of what a candidate is judged by; whoever runs the gate may declare a change of each.
ChangeKind = Literal[
    "evaluation",
    "preparation",
    "postprocess",
    "metric",
    "code",
    "bar",
    "rule",
    "threads",
    "runner",
    "variants",
    "inputs",
    "libraries",
    "untracked-model",
    "untracked-data",
    "committed",
    "terms",
]
# Why a file is the same on both sides of a comparison with a commit, whatever it held then.
Unversioned = Literal["untracked", "outside", "lfs", "submodule"]
# Why a variant is judged: named on the command line, marked in the recipe, or what a build recommends.
Choice = Literal["named", "marked", "marked-before", "recommended", "recommended-before"]


class Change(Result):
    """One change of what the candidate is judged by, between the baseline and now.

    `place` is where it stands, such as `accuracy.max_drop`; a value that is not there is None. A change
    that makes the judgement `tighter` needs no permission. `accepted` says whether `--accept` allows
    the change. `files` names files that the commit does not hold, `unversioned` says why it does not.
    """

    kind: ChangeKind
    place: str
    before: Any = None
    after: Any = None
    tighter: bool = False
    accepted: bool = False
    unversioned: Unversioned | None = None
    files: tuple[str, ...] = ()

    @property
    def open(self) -> bool:
        """Whether it keeps the gate from passing."""
        return not (self.tighter or self.accepted)


class Comparison(Result):
    """One figure of a candidate's artifact beside the baseline's.

    `change` is the growth as a fraction (0.05: 5 % slower or larger) with its 95 % interval; for an
    accuracy it is the loss as a fraction. `limit` is the largest change that passes. Growth by up to
    `slack`, in the figure's unit, never blocks. A comparison that does not block is for information. A
    comparison that was not `compared` has no figures, and says why. An inconclusive one that
    `seems_worse` is more than noise: the rule found it slower, or its estimate lies beyond the limit.
    `pairs` counts launch pairs; `pair_changes` is the growth in each pair, from which the rule decided.
    `device` is that of the recipe on which it was found; None where the gate names none, and for what
    does not depend on one.
    """

    metric: Metric
    name: str
    device: str | None = None
    batch_size: int | None = None
    unit: Unit
    baseline: float | None = None
    candidate: float | None = None
    change: Estimate | None = None
    limit: float | None = None
    slack: float = 0.0
    outcome: Outcome
    blocking: bool = True
    compared: bool = True
    improved: bool = False
    seems_worse: bool = False
    pairs: int = 0
    pair_changes: tuple[float, ...] = ()
    reason: str


class OperatorGrowth(Result):
    """An operator whose time differs between baseline and candidate, ms per call."""

    operator: str
    baseline_ms: float
    candidate_ms: float


class GatedVariant(Result):
    """One variant: why it is judged, its comparisons, what differs between the two artifacts, doubts.

    `causes` says in words what may explain a difference, the most telling first; empty where nothing
    differs or nothing failed. `samples` are files beside the report with every call of both sides, the
    first measurement and the one that confirmed it; none where nothing was timed. One that `is_new`
    has no counterpart in the baseline.
    """

    runner: str
    is_new: bool = False
    chosen: tuple[Choice, ...] = ()
    samples: tuple[str, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    causes: tuple[str, ...] = ()
    operators: tuple[OperatorGrowth, ...] = ()
    flags: tuple[Flag, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """The worst blocking outcome."""
        return worst(each.outcome for each in self.comparisons if each.blocking)


class GateReport(Result):
    """One run of the gate.

    `baseline` says where the baseline came from. `sentence` is the answer in words. `changes` lists
    changes of what the candidate is judged by. `accepted` are the kinds of change that `--accept`
    allows. Raw samples lie beside the report, in the files that each variant's `samples` name.
    `devices` describes the machines of `gate.devices`, by name, as `environment` does this one.
    """

    schema_version: int = Field(SCHEMA, alias="schema")
    recipe: RecipeSummary
    baseline: str
    outcome: Outcome
    sentence: str
    exit_code: int
    changes: tuple[Change, ...] = ()
    accepted: tuple[ChangeKind, ...] = ()
    variants: dict[str, GatedVariant]
    environment: dict[str, Any]
    baseline_environment: dict[str, Any]
    devices: dict[str, dict[str, Any]] = Field(default_factory=dict)
    protocol: dict[str, Any] = Field(default_factory=dict)
    started: str
    finished: str


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """Reject before inconclusive before accept; accept of none."""
    distinct = set(outcomes)
    if "reject" in distinct:
        return "reject"
    return "inconclusive" if "inconclusive" in distinct else "accept"


class HistoryEntry(Result):
    """One figure of one run of the gate. `machine` is a digest of CPU, cores and threads."""

    at: str
    recipe: str
    commit: str | None = None
    baseline: str
    variant: str
    metric: str
    batch_size: int | None = None
    unit: str
    value: FiniteFloat
    change: FiniteFloat | None = None
    outcome: Outcome
    machine: str


@dataclass(frozen=True)
class Trend:
    """A figure over time on one machine; `steps` are indices at which it changed and stayed so.

    `fewest` is how many runs a step takes to be seen, before and after it together. `latest` is by how
    much the last run lies off its level where fewer runs than a step needs have left it: whether that
    stays is not known yet. `earliest` is by how much the first run lies off the level after it.
    """

    recipe: str
    variant: str
    metric: str
    batch_size: int | None
    unit: str
    machine: str
    entries: tuple[HistoryEntry, ...]
    steps: tuple[int, ...]
    fewest: int = 0
    latest: float | None = None
    earliest: float | None = None

    @property
    def enough(self) -> bool:
        """Whether there are runs enough to see a step at all."""
        return len(self.entries) >= self.fewest

    @property
    def change(self) -> float | None:
        """The last run over the first, as a fraction; None of one run, or where the first is none."""
        first, last = self.entries[0].value, self.entries[-1].value
        return last / first - 1 if len(self.entries) > 1 and first > 0 else None

    @property
    def name(self) -> str:
        """`onnx-int8 p50, batch 1`."""
        where = "" if self.batch_size is None else f", batch {self.batch_size}"
        return f"{self.variant} {self.metric}{where}"

    def growth(self, step: int) -> float:
        """How much the median grew at a step, as a fraction of the median before it."""
        bounds = [0, *self.steps, len(self.entries)]
        place = self.steps.index(step)
        values = [each.value for each in self.entries]
        before = median(values[bounds[place] : step])
        after = median(values[step : bounds[place + 2]])
        return after / before - 1 if before else 0.0
