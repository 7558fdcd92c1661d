"""What `optcli loadtest --drift` found: the JSON form of `Drift` is public and has its own version.

Shares are fractions. A row is one input of the model without its batch, such as an image.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from optcli.results.outcomes import Outcome, Result, Verdict

DRIFT_SCHEMA = 1

Statistic = Literal["mean", "std", "min", "max", "size"]


# From a server that may be anybody's: nothing that a terminal obeys.
Line = Annotated[str, Field(max_length=4096, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]


class DriftStatistic(Result):
    """One statistic of the rows, in the reference and in what the server saw.

    `channel` is the channel or feature; None: of the whole row. `size` is the number of values.
    `reference`, `reference_sd` and `seen` are mean and standard deviation over rows. `shift_sd` is
    their difference in standard deviations of the reference; None where that has none. `distance` is
    that of Kolmogorov and Smirnov, from 0 to 1, and `p` its p value, corrected for the number of tests
    (Holm). `drifted`: beyond chance and large enough.
    """

    statistic: Statistic
    channel: int | None = None
    reference: float
    reference_sd: float
    seen: float
    shift_sd: float | None = None
    distance: float
    p: float
    drifted: bool


class DriftChannel(Result):
    """The values of one channel: mean, smallest and largest, of the reference and as seen.

    `reference_std` and `seen_std` are the mean standard deviations within a row, None for features.
    `outside` is the share of the seen values that lie beyond the reference's smallest and largest.
    """

    channel: int
    reference_mean: float
    seen_mean: float
    reference_std: float | None = None
    seen_std: float | None = None
    reference_range: tuple[float, float]
    seen_range: tuple[float, float]
    outside: float


class DriftInput(Result):
    """One input of the model: reject where it drifted, inconclusive where the rows are too few.

    `rows` and `reference_rows` are effective numbers: so many different rows, each drawn with the same
    probability, would say as much. `detectable` is the smallest distance that these rows would have
    shown. `tests` counts the statistics that were tested, `drifted` those that drifted, the farthest
    first.
    """

    name: str
    outcome: Outcome
    reason: str
    rows: float
    reference_rows: float
    detectable: float | None
    tests: int
    drifted: int
    channels: tuple[DriftChannel, ...] = ()
    statistics: tuple[DriftStatistic, ...] = ()


class DriftReference(Result):
    """What the inputs are compared with: `samples` of the `of` samples of a role of the recipe."""

    role: Literal["calibration", "training", "validation", "evaluation"]
    source: Line
    samples: int
    of: int


class Drift(Result):
    """The inputs that a server saw, compared with the data that its model was calibrated with.

    `seen` rows came from `begun` to `written`, and statistics of `kept` of them, drawn at random, are
    compared. `alpha` is the probability that anything drifted by chance alone.
    """

    schema_version: int = Field(DRIFT_SCHEMA, alias="schema")
    model: str
    target: str
    outcome: Outcome
    sentence: str
    started: str
    begun: str
    written: str
    seen: int
    kept: int
    reference: DriftReference
    alpha: float
    inputs: tuple[DriftInput, ...]
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> str:
        """The public JSON form."""
        return self.model_dump_json(by_alias=True, indent=2)
