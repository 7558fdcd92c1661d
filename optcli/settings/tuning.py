"""What a recipe may say under `tune`: what the search may try, and what it looks for."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from optcli.settings import Settings

Objective = Literal["p50", "p99", "throughput", "cost", "size", "memory"]
Runtime = Literal["openvino", "onnxruntime", "pytorch", "litert", "executorch"]
Precision = Literal["fp32", "bf16", "fp16", "int8", "int8-dynamic", "int8-weights"]


class TargetSettings(Settings):
    """What pruning a network shall gain."""

    speedup: float = Field(
        1.4,
        gt=1,
        description="wanted speed-up of a pruned network over the best unpruned one, as the artifacts"
        " run; the search first trains the one nearest to it",
    )


class TuneSettings(Settings):
    """What `optcli tune` may try and what it looks for; options of the command come before these.

    The search tries all that the recipe, its data and this machine allow, unless a key narrows it here.
    """

    minutes: float = Field(
        15.0,
        gt=0,
        le=10_080,
        description="time budget in minutes, with the measurement of the finalists",
    )
    objective: Objective = Field(
        "p50",
        description="what the search makes small: `p50` or `p99` of latency, `cost` of an image"
        " (latency times threads), `size` of the files or `memory` of the process; or large:"
        " `throughput`, the images a second of one caller that waits for each answer",
    )
    core_hour: float | None = Field(
        None,
        gt=0,
        description="what an hour of one core costs, in any currency: the report then says what 1,000"
        " images cost",
    )
    batch_size: int | None = Field(
        None,
        ge=1,
        description="the batch size that the objective is about; default: all of latency.batch_sizes,"
        " by the geometric mean",
    )
    max_size_mb: float | None = Field(None, gt=0, description="largest size of the artifact, in MB")
    runtimes: tuple[Runtime, ...] | None = Field(
        None,
        min_length=1,
        description="runtimes to try; default: `openvino`, `onnxruntime` and `pytorch`, as far as they"
        " are installed",
    )
    precisions: tuple[Precision, ...] | None = Field(
        None, min_length=1, description="precisions to try; default: all that this machine computes in"
    )
    prune: bool = Field(True, description="remove channels and blocks, and train again what is left")
    target: TargetSettings = Field(TargetSettings(), description="wanted speed-up by pruning")
    quantize_aware: bool = Field(True, description="train with quantization in the network")
    threads: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(
        None,
        min_length=1,
        description="numbers of threads to try; default: latency.threads",
    )
    passes: dict[str, dict[str, tuple[Any, ...]]] = Field(
        default_factory=dict,
        description="further passes, your own included, to try when all else was tried: options by"
        " name, each with its values",
        examples=[{"channels_last": {}, "MyPass": {"strength": [0.1, 0.3]}}],
    )
    finalists: int = Field(
        4,
        ge=1,
        le=5,
        description="at most so many finalists are judged; each one more makes the bounds wider",
    )
