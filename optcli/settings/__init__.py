"""What a recipe may set: the base of all settings, and the inputs of a model."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetJsonSchemaHandler, model_validator

from optcli.errors import InputError

if TYPE_CHECKING:
    import numpy as np

DType = Literal["float32", "float16", "float64", "int8", "uint8", "int16", "int32", "int64", "bool"]
Dimension = Annotated[int, Field(ge=1)] | Annotated[str, Field(pattern=r"^[A-Za-z_]\w*$")]

OfImage = Literal["original_size", "original_size_wh", "scale_factor"]


def _expression(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
    return pattern


# Regular expressions over names.
Patterns = tuple[Annotated[str, AfterValidator(_expression)], ...]
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


def require_batch(spec: TensorSpec) -> None:
    """Raise `InputError` for an input that is one image by its sizes."""
    if len(spec.shape) == 3 and (spec.shape[0] == 3 or spec.shape[2] in (1, 3)):
        raise InputError(
            f"input {spec.name!r} of {list(spec.shape)} is one image: it has no dimension for the"
            " batch",
            hint=f"export the model again for a batch, with an example input of {[1, *spec.shape]}:"
            " detectors of torchvision take that in place of a list of images",
        )


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
