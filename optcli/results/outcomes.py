"""What was found out about accuracy, and verdicts: parts of a report."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Outcome = Literal["accept", "reject", "inconclusive"]

# What verdicts on accuracy are called. The policy that decides is `accuracy`, the other one, for
# information, goes by its own name.
POLICIES = ("fixed-set", "non-inferiority")
ACCURACY_VERDICTS = (
    "accuracy",
    "outputs",
    *POLICIES,
    "batch invariance",
    "determinism",
    "saturation",
    "labels",
)


class Result(BaseModel):
    """Base of all results: frozen; unknown keys of a newer writer are kept out of the way."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class Estimate(Result):
    """A value with its 95 % interval; `low` and `high` are None where the samples do not give one."""

    value: float
    low: float | None = None
    high: float | None = None


class Against(Result):
    """How many times as fast something is as another variant, by turns taken side by side."""

    variant: str
    speedup: Estimate


class Verdict(Result):
    """One answer, with its reason: an accuracy bar, a service level, advice such as "does not pay".

    `over` names the variant that a speed was compared with, where that is not the baseline.
    `samples_needed` is how many samples would decide where these cannot; `runner` and `isa` say where
    an accuracy was found: the same file can be right in one runtime or CPU and wrong in another.
    """

    name: str
    outcome: Outcome
    blocking: bool
    limit: float | None = None
    actual: float | None = None
    interval: tuple[float, float] | None = None
    over: str | None = None
    samples_needed: int | None = None
    runner: str | None = None
    isa: str | None = None
    reason: str


class OutputError(Result):
    """How far a variant's outputs lie from the baseline's on the same samples.

    Over all values of all outputs together: signal to noise in decibel (None where they are equal),
    cosine, largest and mean difference; each None where values are not finite or nothing can be
    compared. `samples` counts those compared. `constant` says that outputs do not depend on the
    input although the baseline's do, or that none does.
    """

    sqnr_db: float | None = None
    cosine: float | None = None
    max_abs: float | None = None
    mean_abs: float | None = None
    finite: bool
    constant: bool
    baseline_finite: bool = True
    baseline_constant: bool = False
    samples: int | None = None


class Figure(Result):
    """A further figure of a variant beside the baseline's, such as `calibration_error`."""

    value: float
    baseline: float


class ClassChange(Result):
    """One class on the same samples: shares that were right, and how many changed sides."""

    label: int
    samples: int
    value: float
    baseline: float
    regressed: int
    improved: int


class Stability(Result):
    """Whether outputs depend on what they must not, on a few samples.

    Largest differences over the largest output: of two runs on one batch (`repeat_error`), and of a
    batch against its samples one by one (`batch_error`; None where the model takes no other size).
    """

    repeat_error: float
    batch_error: float | None = None
    samples: int


class Accuracy(Result):
    """Accuracy of one artifact in one runner, against the baseline on the same samples.

    `value`, `baseline` and `drop` are fractions; they and `metric` are None without labels. A positive
    `drop` is a loss, whichever way the metric counts (`better`). `bounds` are the drop's one-sided
    bounds at `confidence`. For metrics that say right or wrong of each sample, `regressed` counts those
    the baseline had right and this variant has wrong, `improved` the reverse, `mcnemar_p` is the exact
    p value of no difference, `classes` are those that changed most; for others all of these are None
    and the intervals are bootstrapped over samples. `agreement` is the share of samples whose largest
    score is the baseline's. `isa` names the CPU's instructions for 8-bit sums, `full_range_weights`
    says whether INT8 weights need those that do not saturate. `evaluated_on` is a digest of the
    evaluation samples, of what makes values of outputs and of the metric: two accuracies can be
    subtracted where it is the same.
    """

    metric: str | None
    value: float | None
    baseline: float | None
    samples: int
    better: Literal["higher", "lower"] = "higher"
    drop: Estimate | None = None
    bounds: Estimate | None = None
    confidence: float = 0.95
    regressed: int | None = None
    improved: int | None = None
    mcnemar_p: float | None = None
    agreement: float | None = None
    figures: dict[str, Figure] = Field(default_factory=dict)
    classes: tuple[ClassChange, ...] = ()
    stability: Stability | None = None
    doubts: tuple[str, ...] = ()
    full_range_weights: bool | None = None
    output_error: OutputError | None = None
    runner: str | None = None
    precision: str | None = None
    isa: str | None = None
    evaluated_on: str | None = None
