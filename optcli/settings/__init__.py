"""What a recipe may set for shapes, latency, accuracy and service levels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator

if TYPE_CHECKING:
    import numpy as np

DType = Literal["float32", "float16", "float64", "int8", "uint8", "int16", "int32", "int64", "bool"]
Dimension = Annotated[int, Field(ge=1)] | Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]

OfImage = Literal["original_size", "original_size_wh", "scale_factor"]

Finite = Annotated[float, Field(allow_inf_nan=False)]
DeviceNames = Annotated[tuple[str, ...], Field(min_length=1)]


class Settings(BaseModel):
    """Base of everything a recipe can say: frozen; unknown keys, inf and NaN are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Abbreviated(Settings):
    """Settings for which a text alone may stand: it is the value of the field `short_for`."""

    short_for: ClassVar[str]

    @model_validator(mode="before")
    @classmethod
    def _written_out(cls, value: Any) -> Any:
        return {cls.short_for: value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"anyOf": [{"type": "string"}, handler(schema)]}


class SymbolRange(Settings):
    """The sizes that one symbol of a shape may take: smallest, most usual, largest."""

    min: int = Field(1, ge=1, description="the smallest size that must work")
    opt: int = Field(8, ge=1, description="the most usual size: engines are made for it")
    max: int = Field(64, ge=1, description="the largest size that must work")

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
    dynamic axes, torch.export dimensions and TensorRT profiles are all read from here. `range` says
    between which bounds the values lie, for the random inputs that conversions are checked on. An
    input with a `value` is the same for every sample, or says of its image how large it was or how it
    was resized: no data feed it.
    """

    name: str = Field(min_length=1, description="name of the input, as the network calls it")
    dtype: DType = Field("float32", description="type of its elements")
    shape: tuple[Dimension, ...] = Field(
        min_length=1, description="sizes, or symbols for sizes that vary; the batch comes first"
    )
    ranges: dict[str, SymbolRange] = Field(default_factory=dict)
    range: tuple[Finite, Finite] | None = Field(
        None,
        description="smallest and largest value, such as [0, 255]: conversions are checked on random"
        " values between them; default: what the recipe's data show, without data a standard normal",
    )
    value: OfImage | tuple[int | Finite, ...] | None = Field(
        None,
        description="what the input holds, where no data feed it: the numbers of every sample, such as"
        " [640, 640], row by row; `original_size`: height and width of the original image in pixels;"
        " `original_size_wh`: width and height; `scale_factor`: by which height and width were resized",
    )

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

    @model_validator(mode="after")
    def _range_ascends(self) -> Self:
        if self.range is not None and self.range[0] >= self.range[1]:
            raise ValueError(f"wanted range: [low, high] with low < high, found {list(self.range)}")
        return self

    @model_validator(mode="after")
    def _value_fits(self) -> Self:
        if self.value is None:
            return self
        if self.range is not None:
            raise ValueError("found range beside value, which says all: leave range out")
        sized, numbers = isinstance(self.value, str), self._numbers()
        if not any(self._takes(len(numbers), shape) for shape in (self.shape, self.shape[1:])):
            shape = f"[{', '.join(map(str, self.shape))}]"
            wanted = "as many numbers as the shape has without the batch"
            wanted = "shape: [batch, 2], or [2] of a model without a batch" if sized else wanted
            raise ValueError(f"found value {self._shown()} for the shape {shape}, wanted {wanted}")
        least, most = _BOUNDS.get(self.dtype, (-math.inf, math.inf))
        for number in numbers:
            if not least <= number <= most or (self.dtype in _BOUNDS and number != int(number)):
                wanted = f"numbers that {self.dtype} can hold"
                raise ValueError(f"found value {self._shown()}, wanted {wanted}")
        return self

    def _numbers(self) -> Sequence[float]:
        """The numbers of a sample; of what an image says, some that the element type must hold."""
        if isinstance(self.value, str):
            return (0.5 if self.value == "scale_factor" else _LONG_SIDE,) * 2
        return self.value or ()

    def _shown(self) -> str:
        return str(self.value if isinstance(self.value, str) else list(self.value or ()))

    @staticmethod
    def _takes(count: int, shape: Sequence[int | str]) -> bool:
        """Whether a shape has so many numbers."""
        sizes = [size for size in shape if isinstance(size, int)]
        return len(sizes) == len(shape) and math.prod(sizes) == count

    @property
    def whole(self) -> bool:
        """Whether it has a value without a dimension for the batch, as SAM's `orig_im_size` [2]."""
        if self.value is None or self.batch_symbol is not None:
            return False
        return len(self.shape) == 1 or not self._takes(len(self._numbers()), self.shape[1:])

    def row(
        self, original: tuple[int, int] | None, scale: tuple[float, float] = (1.0, 1.0)
    ) -> np.ndarray:
        """The value for a sample whose image had this height and width, without the batch.

        `scale` is by which both were resized. That of a `whole` input has the input's own shape.
        """
        import numpy as np

        numbers: Any = self.value
        if numbers == "scale_factor":
            numbers = scale
        elif isinstance(numbers, str):
            assert original is not None
            numbers = original[::-1] if numbers == "original_size_wh" else original
        shape: Any = self.shape if self.whole else self.shape[1:]
        return np.array(numbers, self.dtype).reshape(shape)

    def filled(self, batch_size: int, original: tuple[int, int] | None) -> np.ndarray:
        """The value for a whole batch, all of its images of one size."""
        import numpy as np

        shape = self.concrete(batch_size)
        return np.ascontiguousarray(np.broadcast_to(self.row(original), shape))

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


_FIELDS = ("name", "dtype", "shape", "ranges", "range", "value")
_BOUNDS = {
    "bool": (0, 1),
    "uint8": (0, 255),
    **{f"int{bits}": (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) for bits in (8, 16, 32, 64)},
}
_LONG_SIDE = 2**15 - 1  # pixels that an image's size must be able to have


def fed(inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """The inputs that data feed: those without a value."""
    return tuple(spec for spec in inputs if spec.value is None)


def image_size(inputs: Sequence[TensorSpec]) -> tuple[int, int] | None:
    """Height and width of the first input that is an image; None: none is."""
    for spec in fed(inputs):
        sizes = spec.concrete(1)[1:]
        if len(sizes) == 3:
            last = sizes[2] in (1, 3, 4) and sizes[0] not in (1, 3, 4)
            return (sizes[0], sizes[1]) if last else (sizes[1], sizes[2])
        if len(sizes) == 2:
            return sizes[0], sizes[1]
    return None


def batched(inputs: Sequence[TensorSpec]) -> TensorSpec | None:
    """The first input whose batch varies; None where the batch is fixed."""
    return next((spec for spec in inputs if spec.batch_symbol is not None), None)


def batch_range(inputs: Sequence[TensorSpec]) -> SymbolRange:
    """The batch sizes that all inputs take together; a model without a symbol has just its own."""
    inputs = [spec for spec in inputs if not spec.whole] or inputs
    ranges = [spec.batch_range() for spec in inputs if spec.batch_symbol is not None]
    if not ranges:
        return inputs[0].batch_range()
    low, high = max(each.min for each in ranges), min(each.max for each in ranges)
    return SymbolRange(min=low, opt=max(low, min(ranges[0].opt, high)), max=high)


def size_bytes(inputs: Sequence[TensorSpec], batch_size: int) -> int:
    """Bytes of all inputs together at a batch size."""
    import numpy as np

    return sum(math.prod(each.concrete(batch_size)) * np.dtype(each.dtype).itemsize for each in inputs)


# The longest that anything is measured, and the most fresh processes of one artifact.
_DAY_S = 86_400.0
_MOST_LAUNCHES = 100


class SweepSettings(Settings):
    """The batch sweep: sizes 1, 2, 4, ... of one artifact at a time, in several launches."""

    max: int = Field(64, ge=1, description="the largest batch size; the model's own limit holds too")
    max_seconds: float = Field(
        60.0, gt=0, le=_DAY_S, description="time cap in seconds, per artifact, for all its launches"
    )
    launches: int = Field(5, ge=2, le=20, description="fresh processes per artifact")


# What a mode sets where the recipe does not; `quick` has the defaults that the fields declare.
_MODES: dict[str, dict[str, Any]] = {
    "table": {"launches": 5, "rounds": 8, "calls": 5, "max_seconds": 30.0},
    "gate": {"launches": 8, "rounds": 8, "calls": 5, "max_seconds": 20.0},
}


class LatencySettings(Abbreviated):
    """How latency is measured; the mode sets the defaults of the other settings.

    `quick` opens each artifact three times; `table`, for numbers to be cited, five times, each after
    warming up until it is steady; `gate` warms up both sides of a comparison by the same number of
    calls. Where the machine was not quiet, `quick` and `table` add up to three launches. With `off` a
    build measures none: it judges accuracy alone, and does not wait for other measurements.
    """

    short_for: ClassVar[str] = "mode"

    mode: Literal["quick", "table", "gate", "off"] = Field(
        "quick",
        description="`table`: for numbers to be cited, `gate`: as `optcli gate` measures, `off`: not"
        " at all",
    )
    batch_sizes: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (1,), min_length=1, description="batch sizes to measure; each gets a table of its own"
    )
    threads: int | None = Field(None, ge=1, description="intra-op threads; default: the usable cores")
    launches: int = Field(
        3, ge=1, le=_MOST_LAUNCHES, description="fresh processes per artifact; quick 3, table 5, gate 8"
    )
    rounds: int = Field(
        4, ge=2, description="interleaved rounds per launch and batch size; table and gate 8"
    )
    calls: int = Field(
        10,
        ge=2,
        description="the fewest timed calls per round; optcli adds more while they are cheap; "
        "table and gate 5",
    )
    warmup: int = Field(
        10,
        ge=1,
        description="untimed calls before the first round; table and gate go on until it is steady",
    )
    max_seconds: float = Field(
        10.0,
        gt=0,
        le=_DAY_S,
        description="time cap in seconds of the timed calls, per artifact and batch size, all launches"
        " together; table 30, gate 20",
    )
    min_speedup: float | None = Field(
        None,
        gt=0,
        description="reject a variant that is not this many times as fast as the baseline",
    )
    sweep: bool | SweepSettings = Field(
        False, description="measure every artifact over batch sizes as well; true, or its settings"
    )
    devices: DeviceNames | None = Field(
        None, description="where to measure, by names of `devices`; default: where optcli runs"
    )

    @model_validator(mode="before")
    @classmethod
    def _mode_sets_defaults(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = {"mode": value}
        if isinstance(value, Mapping) and isinstance(value.get("mode"), str):
            return {**_MODES.get(value["mode"], {}), **value}
        return value

    @property
    def is_off(self) -> bool:
        """Whether a build measures no latency."""
        return self.mode == "off"

    @property
    def sweeping(self) -> SweepSettings | None:
        """The settings of the batch sweep; None where none is wanted."""
        if self.is_off:
            return None
        return SweepSettings() if self.sweep is True else self.sweep or None


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
    looks: tuple[Annotated[int, Field(ge=2, le=_MOST_LAUNCHES)], ...] = Field(
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
        180.0, gt=0, le=_DAY_S, description="time cap in seconds, per artifact and batch size"
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
