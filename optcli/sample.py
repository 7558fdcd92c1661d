"""Samples of a data set, as passes, runners and metrics see them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np

    Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Sample:
    """One prepared sample. `inputs` maps an input's name to its array, without the batch dimension.

    `whole` are inputs that never have one: a batch takes those of its first sample.
    """

    id: str
    inputs: Arrays
    target: Any = None
    meta: Mapping[str, Any] = field(default_factory=dict)
    whole: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Batch:
    """Samples stacked along a new first dimension; ids, targets and meta in the same order.

    Inputs that are `whole` are those of the first sample, as they are.
    """

    ids: tuple[str, ...]
    inputs: Arrays
    targets: tuple[Any, ...]
    meta: tuple[Mapping[str, Any], ...]
    whole: frozenset[str] = frozenset()


class SampleSet(Protocol):
    """Prepared samples by position. Nothing is kept: memory does not grow with the set."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Sample: ...


def collate(samples: Sequence[Sample]) -> Batch:
    """Stack samples into a batch."""
    import numpy as np

    whole = samples[0].whole
    return Batch(
        ids=tuple(sample.id for sample in samples),
        inputs={
            name: first if name in whole else np.stack([sample.inputs[name] for sample in samples])
            for name, first in samples[0].inputs.items()
        },
        targets=tuple(sample.target for sample in samples),
        meta=tuple(sample.meta for sample in samples),
        whole=whole,
    )


def batch_of(samples: SampleSet, positions: Sequence[int]) -> Batch:
    """The samples at some positions, stacked; a set that has a way of its own for that is asked."""
    own: Callable[[Sequence[int]], Batch] | None = getattr(samples, "batch", None)
    return collate([samples[position] for position in positions]) if own is None else own(positions)


def batches(samples: SampleSet, size: int) -> Iterator[Batch]:
    """The set in order, `size` samples at a time; the last batch may be smaller."""
    for start in range(0, len(samples), size):
        yield batch_of(samples, range(start, min(start + size, len(samples))))


def cycled(samples: SampleSet, size: int, start: int = 0) -> Batch:
    """A batch of exactly `size` samples from position `start` on, beginning again at the end."""
    return collate([samples[(start + index) % len(samples)] for index in range(size)])
