"""The samples that a conversion is checked on, and what its parent computes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from optcli.errors import StepError
from optcli.outputs.detection_sets import detections_apart
from optcli.outputs.ranges import scaled_parts
from optcli.runners import Runner
from optcli.settings import TensorSpec, batch_range, fed, image_size

if TYPE_CHECKING:
    import numpy as np

    Feed = dict[str, np.ndarray]

# Where the parent's outputs differ between batch sizes by less than this share of the tolerance, those
# of one batch size stand for those of another.
_ALIKE = 0.1
# Outputs of the parent that are held; those of more samples are computed for each batch.
_HELD_BYTES = 512 << 20
# The most random samples beside real ones.
_RANDOM = 2
# What OpenVINO gives then was never written.
_NOTHING = (
    "the model detects nothing in some image, where OpenVINO may give rows without meaning: load"
    " trained weights, or export the detector without its NMS and have `postprocess` do that"
)
# A rounding of single precision.
_ULP = 2.0**-23


@dataclass(frozen=True)
class CheckSamples:
    """Samples of one kind, and the batches to compare on, by the numbers of their samples.

    `arrays` hold all samples, `[n, ...]` by input name. Where `whole`, there is one batch and the
    arrays are it, whatever their first dimension is. `shared` are inputs that never have one.
    """

    kind: str
    arrays: Feed
    batches: tuple[tuple[int, ...], ...]
    whole: bool = False
    shared: Feed = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def feed(self, rows: Sequence[int]) -> Feed:
        """The inputs of a batch."""
        if self.whole:
            return {**self.arrays, **self.shared}
        return {**{name: array[list(rows)] for name, array in self.arrays.items()}, **self.shared}


def drawn(inputs: Sequence[TensorSpec], probe: Path | None) -> Iterator[CheckSamples]:
    """What to compare on: `real` samples where there are any, then `random` ones.

    At batch sizes 1, 2, opt and max; random samples beside real ones at one of these. The random
    samples of a small batch are the first ones of the largest, so that nobody need compute them twice.
    """
    import numpy as np

    span = batch_range(inputs)
    sizes = sorted({size for size in (1, 2, span.opt, span.max) if span.min <= size <= span.max})
    generator = np.random.default_rng(0)
    real = dict(np.load(probe)) if probe is not None else {}
    image = image_size(inputs)
    # An input of the whole call, which varies by sample where the batch size is 1 alone.
    shared = {
        spec.name: real[spec.name][0] if real else spec.filled(sizes[0], image)
        for spec in inputs
        if spec.whole
    }
    inputs = [spec for spec in inputs if not spec.whole]
    if real:
        batches = _batches(len(next(iter(real.values()))), sizes)
        yield CheckSamples(
            "real", {each.name: real[each.name] for each in inputs}, batches, shared=shared
        )
        sizes = [max((size for size in sizes if size <= _RANDOM), default=sizes[0])]
    low, high = _range(fed(inputs)[0], real) or (None, None)
    kind = "random" if low is None else f"random ({low:g} to {high:g})"

    def batch(size: int) -> Feed:
        return {
            spec.name: _random(spec, size, real, generator)
            if spec.value is None
            else spec.filled(size, image)
            for spec in inputs
        }

    if all(spec.concrete(size)[0] == size for spec in inputs for size in sizes):
        batches = tuple(tuple(range(size)) for size in sizes)
        yield CheckSamples(kind, batch(sizes[-1]), batches, shared=shared)
        return
    for size in sizes:
        yield CheckSamples(kind, batch(size), (tuple(range(size)),), whole=True, shared=shared)


def _batches(count: int, sizes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """A batch of each size, and more until every one of so many samples has taken part."""
    chosen, start = [], 0
    for size in sizes:
        chosen.append((size, start))
        start += size
    while start < count:
        size = max((size for size in sizes if start + size <= count), default=sizes[0])
        chosen.append((size, start))
        start += size
    return tuple(tuple((start + i) % count for i in range(size)) for size, start in chosen)


class Expected:
    """What the parent computes of samples, for each batch of them.

    Where it gives a sample the same outputs in the smallest batch and in the largest, it computes every
    sample once, and `shared` is True. Whoever then finds a batch wrong asks for `exact` outputs of it.
    Else it computes every batch. All of that happens here, as far as `_HELD_BYTES` suffice.
    """

    def __init__(self, parent: Runner, samples: CheckSamples, tolerance: float) -> None:
        self._parent, self.samples = parent, samples
        self._rows = self._computed(_ALIKE * tolerance)
        self._batches = self._held() if self._rows is None else {}

    @property
    def shared(self) -> bool:
        """Whether outputs come from batches of another size."""
        return self._rows is not None

    def of(self, rows: Sequence[int]) -> Feed:
        """The outputs of a batch, by name."""
        if self._rows is None:
            held = self._batches.get(tuple(rows))
            return self.exact(rows) if held is None else held
        return {name: array[list(rows)] for name, array in self._rows.items()}

    def exact(self, rows: Sequence[int]) -> Feed:
        """The outputs of a batch, computed as that batch."""
        return self._parent.run(self.samples.feed(rows))

    def _held(self) -> dict[tuple[int, ...], Feed]:
        """The outputs of the first batches, by their rows; others are computed when asked for."""
        held: dict[tuple[int, ...], Feed] = {}
        left = _HELD_BYTES
        for rows in self.samples.batches:
            outputs = self.exact(rows)
            left -= sum(array.nbytes for array in outputs.values())
            if left < 0:
                break
            held[tuple(rows)] = {name: array.copy() for name, array in outputs.items()}
        return held

    def _computed(self, alike: float) -> Feed | None:
        """The outputs of every sample, `[n, ...]` by name; None where the batch matters to them."""
        import numpy as np

        samples, batches = self.samples, self.samples.batches
        if samples.whole or sum(map(len, batches)) <= len(samples) + len(batches[0]):
            return None  # nothing is computed twice
        smallest, largest = (pick(map(len, batches)) for pick in (min, max))
        parts: list[Feed] = []
        for start in range(0, len(samples), largest):
            count = min(largest, len(samples) - start)
            rows = [(start + i) % len(samples) for i in range(max(count, smallest))]
            batch = self.exact(rows)
            if any(not array.ndim or len(array) != len(rows) for array in batch.values()):
                return None
            held = sum(array.nbytes for array in batch.values()) / len(rows) * len(samples)
            if held > _HELD_BYTES:
                return None
            parts.append({name: array[:count].copy() for name, array in batch.items()})
        outputs = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        first = list(batches[0])
        alone = {name: array[first] for name, array in outputs.items()}
        return outputs if relative_error(self.exact(first), alone) <= alike else None


def relative_error(expected: Feed, actual: Feed) -> float:
    """Largest |difference| over largest |expected|, over all outputs by position; infinity for NaN.

    Equal infinities are equal.

    An output that holds things of other ranges, such as boxes and scores, is taken apart: a thousandth
    of a box in pixels is more than a score. Detections that are as likely may stand in another order,
    and those at the threshold of their scores may be more or fewer.
    Of whole numbers, such as labels, the share that differs: the last digit decides between two classes
    that are as likely.
    """
    import numpy as np

    if len(expected) != len(actual):
        raise StepError(f"the result has {len(actual)} outputs, its parent {len(expected)}")
    errors = [0.0]
    for (name, a), b in zip(expected.items(), actual.values(), strict=True):
        if a.shape != b.shape:
            apart = detections_apart(expected, actual)
            if apart is not None and np.isfinite(apart):
                return apart
            raise StepError(
                f"output {name!r} has shape {list(b.shape)}, its parent's has {list(a.shape)}",
                hint=_NOTHING if 0 in a.shape else "",
            )
        if not a.size:
            continue
        if a.dtype.kind in "iub" and b.dtype.kind in "iub":
            errors.append(float((a != b).mean()))
            continue
        a, b = a.astype(np.float64), b.astype(np.float64)
        both = np.isinf(a) & (a == b)  # as a mask gives them
        a, b = np.where(both, 0.0, a), np.where(both, 0.0, b)
        difference = np.abs(a - b)
        error = max(float(difference[part].max()) / scale for part, scale in scaled_parts(np.abs(a)))
        errors.append(error if np.isfinite(error) else np.inf)
    apart = detections_apart(expected, actual) if max(errors) > 0 else None
    return max(errors) if apart is None else min(apart, max(errors))


def rounding_error(parent: Runner, feed: Feed, unit: float = _ULP) -> float:
    """What a rounding of its inputs changes in a model's outputs, as `relative_error` counts.

    `unit` is how far a value is rounded, as a share of it.
    A network that makes much of that computes something else in another order of additions as well.
    0 where no input is of floating point.
    """
    import numpy as np

    generator = np.random.default_rng(0)

    def rounded(array: np.ndarray) -> np.ndarray:
        if array.dtype.kind != "f":
            return array
        nudged: np.ndarray = array * (1 + generator.choice([-unit, unit], array.shape))
        return nudged.astype(array.dtype, copy=False)

    return relative_error(
        parent.run(feed), parent.run({name: rounded(each) for name, each in feed.items()})
    )


def _range(spec: TensorSpec, real: Feed) -> tuple[float, float] | None:
    """Between which values an input of floats lies: as declared, or as the data show; None: unknown."""
    if spec.range is not None or spec.name not in real or not spec.dtype.startswith("float"):
        return spec.range
    return float(real[spec.name].min()), float(real[spec.name].max())


def _random(spec: TensorSpec, size: int, real: Feed, generator: np.random.Generator) -> np.ndarray:
    import numpy as np

    shape, span = spec.concrete(size), _range(spec, real)
    if spec.dtype.startswith("float"):
        drawn = generator.standard_normal(shape)
        if spec.range is not None:
            drawn = generator.uniform(*spec.range, shape)
        elif span is not None:  # where the data lie, as often: far from them a network knows nothing
            values = real[spec.name].astype(np.float64)
            drawn = np.clip(values.mean() + values.std() * drawn, *span)
        return drawn.astype(spec.dtype)
    if span is not None:
        low, high = round(span[0]), round(span[1])
        return generator.integers(low, high, shape, endpoint=True).astype(spec.dtype)
    # Indices and masks: stay within what the data shows, since others may be out of range.
    observed = real[spec.name] if spec.name in real else np.array([0, 1], dtype=spec.dtype)
    return generator.choice(observed.reshape(-1), shape).astype(spec.dtype)
