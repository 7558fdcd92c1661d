"""What a recipe may say under `accuracy`: the metric, the bar, and which policy decides."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from optcli.settings import Settings
from optcli.settings.references import RecipePath, SourceReference

LARGEST_BATCH = 256
"""The most samples per call where the recipe does not say."""


class AccuracySettings(Settings):
    """What accuracy is, and how much of it a variant may lose against the baseline.

    `max_drop`, `min_ratio` and `preset` are three ways to set the bar: one of them, or none, which is
    `max_drop: 0.01`. Both policies are worked out and printed; `policy` says which one decides.
    """

    metric: Annotated[str, SourceReference()] = Field(
        "top1",
        description="a name such as top1, map or miou, or your own: python:FILE.py:CALLABLE",
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="options of the metric, such as {ignore_index: 255} for miou"
    )
    text: RecipePath | None = Field(
        None,
        description="with `zero_shot_top1`: a file (npz, npy, safetensors) with the embedding of a text"
        " for each class",
    )
    policy: Literal["fixed-set", "non-inferiority"] = Field(
        "fixed-set",
        description="`fixed-set`: what is lost on these very samples decides; `non-inferiority`: the"
        " confidence bound of the loss decides, for claims about samples not seen",
    )
    max_drop: float | None = Field(
        None, ge=0, le=1, description="largest absolute loss, as a fraction; 0.01 where no bar is set"
    )
    min_ratio: float | None = Field(
        None, gt=0, le=1, description="smallest share of the baseline's value that must remain"
    )
    preset: Literal["mlperf-99", "mlperf-99.9"] | None = Field(
        None, description="MLPerf's quality targets: min_ratio 0.99 or 0.999"
    )
    expected: float | None = Field(
        None,
        gt=0,
        le=1,
        description="what the baseline should reach, as a fraction, such as the accuracy that training"
        " ended with; default: what torchvision says of its weights, or what `finetune` saw",
    )
    margin: float | None = Field(
        None,
        gt=0,
        le=1,
        description="with `non-inferiority`: a loss up to this counts as none; default: the bar",
    )
    confidence: float = Field(
        0.95, gt=0.5, lt=1, description="with `non-inferiority`: the confidence, one-sided"
    )
    interface: Literal["same", "any"] = Field(
        "same",
        description="`same`: outputs must keep the baseline's number, names, order, shapes and kinds of"
        " numbers; `any`: optcli reports a change of them, and it blocks nothing",
    )
    output: str | None = Field(None, description="which output the metric reads; default: the first")
    batch_size: int | None = Field(
        None,
        ge=1,
        description="samples per call; default: by their size, 32 to 256, within what the model takes",
    )
    target_isa: Literal["vnni", "avx2"] | None = Field(
        None,
        description="the CPU that will serve the artifacts, where it is not this one: `avx2` has no"
        " VNNI, and sums of 8-bit products saturate there",
    )

    @model_validator(mode="after")
    def _one_bar(self) -> Self:
        given = [n for n in ("max_drop", "min_ratio", "preset") if getattr(self, n) is not None]
        if len(given) > 1:
            raise ValueError(f"found {given[0]} beside {given[1]}, wanted one of them")
        return self

    @model_validator(mode="after")
    def _text_where_it_is_read(self) -> Self:
        if (self.metric == "zero_shot_top1") != (self.text is not None):
            text_or_none = "text" if self.text is not None else "no text"
            raise ValueError(
                f"found {text_or_none} with {self.metric}, wanted it with zero_shot_top1 alone"
            )
        return self

    @property
    def largest_batch(self) -> int:
        """The most samples that one call gets."""
        return LARGEST_BATCH if self.batch_size is None else self.batch_size

    @property
    def ratio(self) -> float | None:
        """The share of the baseline's value that must remain; None where the bar is absolute."""
        presets = {"mlperf-99": 0.99, "mlperf-99.9": 0.999}
        return presets[self.preset] if self.preset else self.min_ratio

    def bar(self, baseline: float, *, lower_is_better: bool = False) -> float:
        """The largest loss allowed, as a fraction, against a baseline's value."""
        if self.ratio is None:
            return 0.01 if self.max_drop is None else self.max_drop
        ratio = 1 / self.ratio if lower_is_better else self.ratio
        return abs(baseline * (1 - ratio))
