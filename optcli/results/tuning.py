"""What a repair or a search found: its trials, the finalists and the answer, as plain data."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field

from optcli.results.outcomes import Estimate, Outcome, Result


class Trial(Result):
    """One rebuild of the variant with other options of its quantizing pass; number 0 is as it was.

    `options` are those that changed. `operators` counts the operators that compute on integers,
    `float_operators` how many fewer than in the variant as it was. `inside` says whether every
    blocking verdict on accuracy accepts; `drop` is what is lost against the baseline. `speedup` is
    over the variant without its quantizing pass in the same runner, both taking turns, at the first
    batch size; None where it was not measured, since only trials inside the bar are. Where the trial
    failed `reason` says why.
    """

    number: int
    label: str
    options: dict[str, Any]
    inside: bool = False
    value: float | None = None
    drop: Estimate | None = None
    operators: int | None = None
    float_operators: int | None = None
    p50_ms: float | None = None
    float_p50_ms: float | None = None
    speedup: Estimate | None = None
    size_bytes: int | None = None
    key: str | None = None
    seconds: float
    reason: str | None = None

    @property
    def pays(self) -> bool:
        """Faster than its own float parent, beyond the doubt of the interval."""
        return self.speedup is not None and (self.speedup.low or 0.0) > 1.0


class Repair(Result):
    """All trials of one variant; `chosen` is the number of the best: inside the bar, then the fastest.

    `outcome`: `repaired` (inside and faster than in float), `accurate` (inside, but not known to be
    faster), `unrepaired`. `patch` is a unified diff of the recipe, empty where there is nothing to
    change or `patch_problem` says why it cannot be written. `baseline` is the baseline's metric.
    """

    recipe: str
    variant: str
    quantizing_pass: str
    runner: str
    metric: str
    baseline: float | None
    batch_size: int
    trials: tuple[Trial, ...]
    chosen: int | None = None
    outcome: Literal["repaired", "accurate", "unrepaired"]
    stopped_because: str
    patch: str = ""
    patch_problem: str | None = None
    written: bool = False
    seconds: float

    @property
    def best(self) -> Trial | None:
        """The trial that was chosen."""
        return next((each for each in self.trials if each.number == self.chosen), None)


# How far a trial came. `timed`: only its speed was wanted, since its network is not trained yet.
Stage = Literal["failed", "timed", "slower", "outside", "inside"]


# Objectives that count bytes: what makes a network slow says nothing of them.
COUNTED_IN_BYTES = ("size", "memory")


class TuningTrial(Result):
    """One candidate that was built, timed and judged on validation samples.

    `passes` and `runner` are written as a recipe has them. `speedups` are over the reference by batch
    size: measured in turns, or over the best trial so far times what that gained. `ahead` is the speed
    over the best trial so far, in turns. `score` is the objective, as a multiple of the reference's:
    larger is better. `loss` is what is lost against the baseline on `samples` validation samples: of
    the metric, or without labels the share of samples whose largest output is another; `bar` is the
    largest loss allowed, and `certain` says whether the bound of the loss lies inside it too. `stage`
    says how far it came, `reason` why no further. `parameters` are what the search chose. `operators`
    counts those that compute on integers, `family` says whether the network is a `transformer` or
    `convolutional`, `float_groups` names layers that may be left in float, where quantizing has cost
    too much. `judging_s` is how long judging it on all validation samples took, with the baseline where
    that was not judged before. `ended_early` says why its training took less than its `train_s`, and
    `trained_share` how much of that. `blocks_removed` of the `blocks_found` are gone of a network that
    was cut and not trained. Times are in seconds.
    """

    number: int
    label: str
    why: str
    parameters: dict[str, Any]
    passes: tuple[tuple[str, dict[str, Any]], ...]
    runner: dict[str, Any] | None = None
    stage: Stage = "failed"
    score: Estimate | None = None
    speedups: dict[int, Estimate] = Field(default_factory=dict)
    ahead: Estimate | None = None
    p50_ms: dict[int, float] = Field(default_factory=dict)
    value: float | None = None
    baseline: float | None = None
    bar: float | None = None
    loss: Estimate | None = None
    certain: bool = False
    sqnr_db: float | None = None
    samples: int | None = None
    promises_kept: bool = True
    size_bytes: int | None = None
    memory_bytes: int | None = None
    key: str | None = None
    trains: bool = False
    operators: int | None = None
    family: str | None = None
    float_groups: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    judging_s: float | None = None
    ended_early: str | None = None
    trained_share: float = 1.0
    blocks_removed: int | None = None
    blocks_found: int | None = None
    seconds: float = 0.0
    reason: str | None = None


class Finalist(Result):
    """A trial that was built as a variant of the tuned recipe and judged on the evaluation samples.

    `validation_loss` and `loss` are what it loses on validation and on evaluation samples;
    `optimism` is by how much the first was too small. `certain` says whether the bound of the loss lies
    inside the bar too, at a confidence that allows for the number of finalists. `speedup` is over the
    baseline, by batch size. `cheaper` is the number of images that a core-hour answers, over that of
    the baseline; `cost_per_1000` is what 1,000 images cost where the price is known. Both are by batch
    size, and for the objective `cost` alone. `p99_speedup` is the baseline's p99 over its own, by batch
    size and for the objective `p99` alone; its bounds allow for both intervals. `needed_bytes` is the
    size of its files or the memory of its process, for the objectives `size` and `memory` alone.
    `score` is None where the machine was not quiet enough to measure it.
    """

    variant: str
    trial: int
    why: str
    outcome: Outcome
    certain: bool = False
    validation_loss: float | None = None
    loss: float | None = None
    optimism: float | None = None
    speedup: dict[int, Estimate] = Field(default_factory=dict)
    p50_ms: dict[int, float] = Field(default_factory=dict)
    cheaper: dict[int, Estimate] = Field(default_factory=dict)
    cost_per_1000: dict[int, float] = Field(default_factory=dict)
    p99_speedup: dict[int, Estimate] = Field(default_factory=dict)
    needed_bytes: int | None = None
    score: float | None = None


class Tuning(Result):
    """A search: what was tried, what came out of it, and in words what paid and what did not.

    `outcome` is `faster` where the winner is inside the bar and known to be faster than the baseline
    (by the objective: by p99, cheaper for `cost`, smaller for `size` and `memory`), `accurate` where it
    is inside and not known to be that, else `none`. `left_out` says what was not tried and why.
    `findings` are sentences. `bar` is the recipe's: the largest loss. `confidence` is the one of each
    finalist's verdict; all of them together then have the recipe's. `path` is the tuned recipe,
    `baseline` its baseline, and `baseline_bytes` that one's size or memory where the objective is
    `size` or `memory`. Without a metric `confidence` is None, and a loss is the share of samples whose
    largest output is another. `next_idea` is what the search would try with more time. `isa` names the
    instructions of 8-bit sums. `others_share` is the part of the processors' time, 0..1, that other
    programs and other guests of the host had during the trials of the last run; None where that is not
    known.
    """

    recipe: str
    path: str
    objective: str
    batch_sizes: tuple[int, ...]
    reference: str
    bar: float | None
    validation: str
    minutes: float
    seconds: float
    trials: tuple[TuningTrial, ...]
    finalists: tuple[Finalist, ...] = ()
    confidence: float | None = None
    winner: str | None = None
    outcome: Literal["faster", "accurate", "none"] = "none"
    answer: str = ""
    findings: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    stopped_because: str = ""
    next_idea: str | None = None
    isa: str | None = None
    others_share: float | None = None
    baseline: str | None = None
    baseline_bytes: int | None = None


def scaled(estimate: Estimate, factor: float) -> Estimate:
    """The estimate times a factor that is known exactly."""
    low, high = (None if end is None else factor * end for end in (estimate.low, estimate.high))
    return Estimate(value=factor * estimate.value, low=low, high=high)


def product(one: Estimate, other: Estimate) -> Estimate:
    """A ratio over what another ratio is of; without bounds where one of them has none."""
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return Estimate(value=one.value * other.value)
    return Estimate(value=one.value * other.value, low=one.low * other.low, high=one.high * other.high)


def score_of(trial: TuningTrial) -> float:
    """The objective as a multiple of the reference's, larger is better; 0 where it is not known."""
    return trial.score.value if trial.score is not None else 0.0


def geometric_mean(estimates: list[Estimate]) -> Estimate | None:
    """The geometric mean of ratios; its bounds are the means of their bounds, which is wide enough."""
    if not estimates:
        return None

    def mean(values: list[float | None]) -> float | None:
        known = [value for value in values if value is not None and value > 0]
        return math.exp(sum(map(math.log, known)) / len(known)) if len(known) == len(values) else None

    value = mean([each.value for each in estimates])
    if value is None:
        return None
    low, high = (mean([getattr(each, side) for each in estimates]) for side in ("low", "high"))
    return Estimate(value=value, low=low, high=high)
