"""Samples as tensors for passes that compute gradients; decoded once, as far as they fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optcli.errors import InputError, StepError
from optcli.sample import Sample, SampleSet, collate

if TYPE_CHECKING:
    import torch

# What decoded samples may take in memory; those beyond it are read anew each time.
_KEPT_BYTES = 512 << 20


@dataclass(frozen=True)
class Examples:
    """A batch: inputs by name, and labels, `[n]` or `[n, ...]` of int64, where there are any."""

    positions: tuple[int, ...]
    feed: dict[str, torch.Tensor]
    labels: torch.Tensor | None


class ExampleSet:
    """The samples of a data role in batches.

    Decoded samples stay in memory until they fill `kept_bytes`; the others are prepared again every
    time. Raises `StepError` for a role without samples.
    """

    def __init__(self, samples: SampleSet | None, role: str, kept_bytes: int = _KEPT_BYTES) -> None:
        if samples is None or len(samples) == 0:
            raise StepError(f"there are no {role} samples", hint=f"name some under `data: {role}:`")
        self._samples = samples
        self._role = role
        self._free_bytes = kept_bytes
        self._kept: dict[int, Sample] = {}
        self.labelled = self._sample(0).target is not None

    def __len__(self) -> int:
        return len(self._samples)

    def batches(self, order: Sequence[int], size: int) -> Iterator[Examples]:
        """The samples at some positions, `size` at a time; the last batch may be smaller."""
        for start in range(0, len(order), size):
            yield self.batch(order[start : start + size])

    def batch(self, positions: Sequence[int]) -> Examples:
        """Some samples as tensors. Raises `StepError` where they do not stack or a label is odd."""
        import torch

        samples = [self._sample(position) for position in positions]
        try:
            arrays = collate(samples).inputs
        except ValueError as error:
            raise StepError(
                f"the {self._role} samples differ in size and do not stack into a batch",
                hint="resize or crop them under `prepare:`, or set `batch_size: 1`",
            ) from error
        feed = {name: torch.from_numpy(array) for name, array in arrays.items()}
        labels = self._labels(samples) if self.labelled else None
        return Examples(tuple(positions), feed, labels)

    def _sample(self, position: int) -> Sample:
        found = self._kept.get(position)
        if found is None:
            found = self._samples[position]
            size_bytes = _size_bytes(found.inputs)
            if size_bytes <= self._free_bytes:
                self._free_bytes -= size_bytes
                self._kept[position] = found
        return found

    def _labels(self, samples: Sequence[Sample]) -> torch.Tensor:
        import numpy as np
        import torch

        labels = [np.asarray(-1 if s.target is None else s.target) for s in samples]
        for sample, label in zip(samples, labels, strict=True):
            if label.dtype.kind not in "ui" or (label.size and int(label.min()) < 0):
                raise InputError(
                    f"wanted class numbers from 0 as labels, found {sample.target!r}",
                    place=f"{self._role} sample {sample.id}",
                    hint="give the data whole numbers as labels, or set `distillation_weight: 1`",
                )
        try:
            return torch.from_numpy(np.stack(labels).astype(np.int64))
        except ValueError as error:
            raise StepError(
                f"the labels of the {self._role} samples differ in shape",
                hint="set `distillation_weight: 1` to learn from the teacher alone",
            ) from error


def spread(count: int, most: int) -> list[int]:
    """At most `most` of `count` positions, evenly spaced: image folders are sorted by class."""
    taken = min(count, most)
    return [index * count // taken for index in range(taken)]


def _size_bytes(inputs: Mapping[str, Any]) -> int:
    return sum(int(array.nbytes) for array in inputs.values())
