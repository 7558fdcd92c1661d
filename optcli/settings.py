"""What a recipe may set for shapes, latency, accuracy and service levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

DType = Literal["float32", "float16", "float64", "int8", "uint8", "int16", "int32", "int64", "bool"]
Dimension = Annotated[int, Field(ge=1)] | Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]


class Settings(BaseModel):
    """Base of everything a recipe can say: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class SymbolRange(Settings):
    """The sizes that one symbol of a shape may take: smallest, most usual, largest."""

    min: int = Field(1, ge=1)
    opt: int = Field(8, ge=1)
    max: int = Field(64, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _opt_defaults_within(cls, value: Any) -> Any:
        if isinstance(value, Mapping) and "opt" not in value:
            low, high = value.get("min", 1), value.get("max", 64)
            if isinstance(low, int) and isinstance(high, int):
                return {**value, "opt": max(low, min(8, high))}
        return value

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.min <= self.opt <= self.max:
            raise ValueError(
                f"wanted min <= opt <= max, found min {self.min}, opt {self.opt}, max {self.max}"
            )
        return self


class TensorSpec(Settings):
    """One input of the model: name, element type and shape.

    A dimension is a size or a symbol such as `batch`; a symbol's range stands under its own name
    (`batch: {min: 1, opt: 8, max: 64}`). A first dimension that is a symbol is the batch. ONNX
    dynamic axes, torch.export dimensions and TensorRT profiles are all read from here.
    """

    name: str = Field(min_length=1)
    dtype: DType = "float32"
    shape: tuple[Dimension, ...] = Field(min_length=1)
    ranges: dict[str, SymbolRange] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _collect_ranges(cls, value: Any) -> Any:
        """Move `batch: {...}` and other symbols of the shape into `ranges`."""
        if not isinstance(value, Mapping) or not isinstance(value.get("shape"), list | tuple):
            return value
        symbols = [size for size in value["shape"] if isinstance(size, str)]
        ranges = {name: value[name] for name in symbols if name in value and name not in _FIELDS}
        rest = {key: item for key, item in value.items() if key not in ranges}
        given = rest.pop("ranges", {})
        defaults = {name: SymbolRange() for name in symbols}
        shape = tuple(value["shape"])
        return {**rest, "shape": shape, "ranges": {**defaults, **dict(given), **ranges}}

    @property
    def batch_symbol(self) -> str | None:
        """The symbol of the first dimension; None where the batch size is fixed."""
        first = self.shape[0]
        return first if isinstance(first, str) else None

    @property
    def symbols(self) -> tuple[str, ...]:
        """The symbols of the shape, in order, each once."""
        return tuple(dict.fromkeys(size for size in self.shape if isinstance(size, str)))

    def batch_range(self) -> SymbolRange:
        """The batch sizes that the input takes; a fixed first dimension gives just that one."""
        if self.batch_symbol is not None:
            return self.ranges[self.batch_symbol]
        size = int(self.shape[0])
        return SymbolRange(min=size, opt=size, max=size)

    def concrete(self, batch_size: int) -> tuple[int, ...]:
        """The shape at a batch size, every other symbol at its `opt`."""
        sizes = {symbol: spec.opt for symbol, spec in self.ranges.items()}
        if self.batch_symbol is not None:
            sizes[self.batch_symbol] = batch_size
        return tuple(sizes[size] if isinstance(size, str) else size for size in self.shape)


_FIELDS = ("name", "dtype", "shape", "ranges")


def batch_range(inputs: Sequence[TensorSpec]) -> SymbolRange:
    """The batch sizes that all inputs take together; a model without a symbol has just its own."""
    ranges = [spec.batch_range() for spec in inputs if spec.batch_symbol is not None]
    if not ranges:
        return inputs[0].batch_range()
    low, high = max(each.min for each in ranges), min(each.max for each in ranges)
    return SymbolRange(min=low, opt=max(low, min(ranges[0].opt, high)), max=high)


class LatencySettings(Settings):
    """How latency is measured. `quick` is one launch per artifact, interleaved in short rounds."""

    mode: Literal["quick"] = "quick"
    batch_sizes: tuple[Annotated[int, Field(ge=1)], ...] = Field((1,), min_length=1)
    threads: int | None = Field(None, ge=1, description="intra-op threads; default: the usable cores")
    rounds: int = Field(8, ge=2, description="interleaved rounds per artifact and batch size")
    calls: int = Field(16, ge=2, description="timed calls per round, before the time cap")
    warmup: int = Field(10, ge=1, description="untimed calls before the first round")
    max_seconds: float = Field(10.0, gt=0, description="time cap per artifact and batch size")
    min_speedup: float | None = Field(
        None, gt=0, description="block a variant that is not this much faster than the baseline"
    )


class AccuracySettings(Settings):
    """What accuracy is and how much of it a variant may lose against the baseline."""

    metric: str = Field("top1", description="a metric of optcli/accuracy")
    max_drop: float = Field(0.01, ge=0, le=1, description="largest absolute loss, as a fraction")
    output: str | None = Field(None, description="which output the metric reads; default: the first")
    batch_size: int = Field(32, ge=1)


class SloSettings(Settings):
    """The promise to keep: latency bounds in milliseconds at batch size 1, and a request rate."""

    p50_ms: float | None = Field(None, gt=0)
    p95_ms: float | None = Field(None, gt=0)
    p99_ms: float | None = Field(None, gt=0)
    rate_per_s: float | None = Field(None, gt=0, description="read by `optcli plan`")
