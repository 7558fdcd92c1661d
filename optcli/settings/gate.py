"""What the gate compares and how sure it wants to be: the `gate` section of a recipe."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from optcli.settings import DeviceNames, Settings
from optcli.settings.latency import DAY_S, MOST_LAUNCHES


class GateBar(Settings):
    """How much a percentile of latency may grow against the gate's baseline, as fractions.

    Growth up to `margin` is what rebuilding the same sources explains; growth of `limit` and more is
    what the gate promises to find.
    """

    limit: float = Field(gt=0, description="growth that the gate finds: 0.05 is 5 % slower")
    margin: float | None = Field(
        None, ge=0, description="growth that never fails; default: 0.4 of the limit"
    )
    undecided: Literal["blocks", "advice"] = Field(
        "blocks", description="what a result counts as that the measurement cannot decide"
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.margin is not None and self.margin >= self.limit:
            raise ValueError(f"wanted margin < limit, found margin {self.margin}, limit {self.limit}")
        return self

    @property
    def margin_or_default(self) -> float:
        """The margin in force."""
        return 0.4 * self.limit if self.margin is None else self.margin


class GateSettings(Settings):
    """What `optcli gate` compares with the baseline, and how sure it wants to be."""

    p50: GateBar | None = Field(
        GateBar(limit=0.05), description="how much the median may grow; null: not judged"
    )
    p95: GateBar | None = Field(
        GateBar(limit=0.30, margin=0.10, undecided="advice"),
        description="how much the 95th percentile may grow; null: not judged",
    )
    looks: tuple[Annotated[int, Field(ge=2, le=MOST_LAUNCHES)], ...] = Field(
        (8, 16, 24), min_length=1, description="after how many pairs of launches the gate may decide"
    )
    false_alarms: float = Field(
        0.01,
        gt=0,
        lt=0.5,
        description="probability that any bar fails where the growth is just its margin",
    )
    robust: Literal["ranks", "sign"] = Field(
        "ranks",
        description="how pairs of launches are tested: by their ranks, or by their `sign` alone, which"
        " finds less on a quiet machine and more where single pairs are far off",
    )
    batch_sizes: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (1,), min_length=1, description="batch sizes to judge"
    )
    threads: int | None = Field(
        None, ge=1, description="intra-op threads; default: one less than the usable cores"
    )
    max_seconds: float = Field(
        180.0, gt=0, le=DAY_S, description="time cap in seconds, per artifact and batch size"
    )
    max_size_growth: float | None = Field(
        0.05, ge=0, description="how much larger the artifact's files may get; null: no limit"
    )
    max_memory_growth: float | None = Field(
        0.10, ge=0, description="how much more memory its process may take at the peak; null: no limit"
    )
    confirm: bool = Field(
        False, description="measure a failing variant once more; it fails only if both runs fail"
    )
    devices: DeviceNames | None = Field(
        None, description="whose latency decides, by names of `devices`; default: where optcli runs"
    )

    @model_validator(mode="after")
    def _judges_latency(self) -> Self:
        if self.p50 is None and self.p95 is None:
            raise ValueError("found p50: null beside p95: null, wanted a bar for one of them")
        return self

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if list(self.looks) != sorted(set(self.looks)):
            raise ValueError(f"wanted ascending numbers of pairs, found {list(self.looks)}")
        return self
