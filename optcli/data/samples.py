"""Prepared samples: raw items, the declared steps, and the check against the model's inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from optcli.data.collection import RawSample, RawSamples
from optcli.data.preparation import Preparation
from optcli.data.preset import resolved
from optcli.data.settings import DataSettings
from optcli.errors import InputError, did_you_mean
from optcli.sample import Sample
from optcli.settings import TensorSpec, fed, require_batch

if TYPE_CHECKING:
    import numpy as np


_OTHER_SHAPE = "prepare: with resize, crop, channel_order or layout, or correct the input's shape"
_SEVERAL = (
    "a sample is one image, and this input takes several, as a video: npz: and python: hold such arrays"
)
_OTHER_SIZES = (
    "the model prepares images of one size itself: embed_preparation: {size: any} takes others"
)


class PreparedSet:
    """A `SampleSet`: every sample is read, prepared and checked when it is asked for, and not kept."""

    def __init__(self, settings: DataSettings, items: RawSamples, inputs: Sequence[TensorSpec]) -> None:
        self._items = items
        self._inputs = tuple(inputs)
        self._whole = frozenset(spec.name for spec in inputs if spec.whole)
        names = [spec.name for spec in fed(inputs)]
        self._image = settings.input or names[0]
        if self._image not in names:
            hint = did_you_mean(self._image, names)
            raise InputError(
                f"the model has no input {self._image!r}", place=settings.source, hint=hint
            )
        self._declared = settings.prepare is not None
        self._steps = resolved(settings.prepare or Preparation())
        self._hint = _OTHER_SIZES if self._steps.inside == "all" else _OTHER_SHAPE

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> Sample:
        """One sample. Raises IndexError, and `InputError` with the sample's place in it."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.prepared(self.read(index))

    def read(self, index: int) -> RawSample:
        """One sample as it is stored, decoded. Raises `InputError`."""
        return self._items.read(index)

    def prepared(self, item: RawSample) -> Sample:
        """What the declared steps make of it. Raises `InputError` with the sample's place in it."""
        try:
            return self._sample(item)
        except InputError as error:
            raise type(error)(
                error.message, place=error.place or item.place, hint=error.hint
            ) from error

    @property
    def parallel(self) -> bool:
        """Whether several threads may ask for samples at once."""
        return self._items.parallel

    def targets(self) -> Iterator[tuple[str, Any]] | None:
        """The place and target of every sample, where the source tells them without reading samples."""
        return self._items.targets()

    def identity(self, index: int) -> tuple[str, str]:
        """The id of a sample and the digest of its content before preparation."""
        return self._items.identity(index)

    def _sample(self, item: RawSample) -> Sample:
        inputs: dict[str, np.ndarray] = {}
        meta: Mapping[str, Any] = {}
        sizes: dict[str, int] = {}
        for spec in fed(self._inputs):
            value = item.raw[spec.name]
            if spec.name == self._image:
                value, meta = self._prepared(value, spec)
            several = spec.name == self._image and value.ndim < len(spec.shape) - 1
            inputs[spec.name] = _fitted(value, spec, sizes, _SEVERAL if several else self._hint)
        meta = {**item.meta, **meta}
        ordered = {
            spec.name: inputs[spec.name] if spec.value is None else _filled(spec, meta)
            for spec in self._inputs
        }
        return Sample(item.id, ordered, item.target, meta, self._whole)

    def _prepared(self, value: Any, spec: TensorSpec) -> tuple[np.ndarray, Mapping[str, Any]]:
        from optcli.data import steps

        if hasattr(value, "mode"):
            pixels = steps.decoded(value, self._steps)
        elif self._declared:
            pixels = steps.from_array(value, self._steps.array_layout)
        else:
            return value, {}
        image = steps.transformed(pixels, self._steps)
        layout = self._steps.layout or layout_of(spec)
        if layout == "hw" and (image.pixels.shape[2] == 3 or spec.shape[-1] == 1):
            require_batch(spec)
        pixels = steps.laid_out(image.pixels, self._steps, layout, spec.shape[1:])
        return pixels, image.placement()


def _filled(spec: TensorSpec, meta: Mapping[str, Any]) -> np.ndarray:
    """The value of an input that no data feed."""
    key, what, numbers = "original_size", "the size of the original image", "[640, 640]"
    if spec.value == "scale_factor":
        key, what, numbers = "scale", "the factors by which its image was resized", "[1, 1]"
    if isinstance(spec.value, str) and key not in meta:
        raise InputError(
            f"input {spec.name!r} takes {what}: not known",
            hint="declare `prepare` for images as they are stored, give each sample of python: the"
            f" meta {key}, or write the numbers: value: {numbers}",
        )
    return spec.row(meta.get("original_size"), meta.get("scale", (1.0, 1.0)))


def layout_of(spec: TensorSpec) -> str:
    """The layout an input's shape speaks of; channels first in doubt."""
    if len(spec.shape) == 3:
        return "hw"
    first, last = spec.shape[1:2], spec.shape[-1:]
    return "hwc" if last[0] in (1, 3, 4) and first[0] not in (1, 3, 4) else "chw"


def _fitted(value: np.ndarray, spec: TensorSpec, sizes: dict[str, int], hint: str) -> np.ndarray:
    """The array in the input's element type, its shape checked; `sizes` keeps each symbol's size."""
    import numpy as np

    shape = spec.shape[1:]
    fits = len(shape) == value.ndim and all(
        _size_fits(wanted, size, spec, sizes) for wanted, size in zip(shape, value.shape, strict=True)
    )
    if not fits:
        raise InputError(
            f"input {spec.name!r}: found shape {_shown(value.shape)}, wanted {_shown(shape)}",
            hint=hint,
        )
    if value.dtype.kind not in "buif":
        raise InputError(
            f"input {spec.name!r}: found {value.dtype} values, wanted {spec.dtype}",
            hint="store the array as numbers",
        )
    cast = np.ascontiguousarray(value, dtype=spec.dtype)
    if cast.dtype.kind == "f":
        if not np.isfinite(cast).all():
            raise InputError(
                f"input {spec.name!r} holds values that are not finite in {spec.dtype}",
                hint="remove NaN and infinity from the data, and look at scale, mean and std",
            )
    elif not np.array_equal(cast, value):
        raise InputError(
            f"input {spec.name!r}: values {value.min():g}..{value.max():g} are no {spec.dtype}",
            hint="give the input a float dtype, or prepare without scale, mean and std",
        )
    return cast


def _size_fits(wanted: int | str, size: int, spec: TensorSpec, sizes: dict[str, int]) -> bool:
    if isinstance(wanted, int):
        return wanted == size
    allowed = spec.ranges[wanted]
    return allowed.min <= size <= allowed.max and sizes.setdefault(wanted, size) == size


def _shown(shape: Sequence[int | str]) -> str:
    return f"[{', '.join(str(size) for size in shape)}]"
