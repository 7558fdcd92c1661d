"""Samples as tensors for passes that compute gradients; prepared once, as far as there is room."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optcli.errors import InputError, StepError
from optcli.files.sample_cache import MEMORY_BYTES, CachedSampleSet, CachingSampleSet
from optcli.sample import Batch, SampleSet, batch_of

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Examples:
    """A batch: inputs by name, and labels, `[n]` or `[n, ...]` of int64, where there are any."""

    positions: tuple[int, ...]
    feed: dict[str, torch.Tensor]
    labels: torch.Tensor | None


class ExampleSet:
    """The samples of a data role in batches.

    Each is prepared once, as far as there is room: see `sample_cache`. `kept_bytes` is what may be held
    in memory of a set that does not care for itself. Raises `StepError` for a role without samples.
    """

    def __init__(self, samples: SampleSet | None, role: str, kept_bytes: int = MEMORY_BYTES) -> None:
        if samples is None or len(samples) == 0:
            raise StepError(f"there are no {role} samples", hint=f"name some under `data: {role}:`")
        self._chosen: Sequence[int] = range(len(samples))
        own = isinstance(samples, CachingSampleSet | CachedSampleSet)
        self._samples = samples if own else CachingSampleSet(samples, memory_bytes=kept_bytes)
        self._role = role
        self.labelled = self._samples[0].target is not None

    def __len__(self) -> int:
        return len(self._chosen)

    def divided(self, held_out: int) -> tuple[ExampleSet, ExampleSet]:
        """The samples in two parts, the second with so many of them, evenly spaced."""
        held = spread(len(self), held_out)
        rest = sorted(set(range(len(self))) - set(held))
        return self._only(rest), self._only(held)

    def _only(self, positions: Sequence[int]) -> ExampleSet:
        part = copy(self)
        part._chosen = [self._chosen[position] for position in positions]
        return part

    def batches(self, order: Sequence[int], size: int) -> Iterator[Examples]:
        """The samples at some positions, `size` at a time; the last batch may be smaller."""
        for start in range(0, len(order), size):
            yield self.batch(order[start : start + size])

    def batch(self, positions: Sequence[int]) -> Examples:
        """Some samples as tensors. Raises `StepError` where they do not stack or a label is odd."""
        import torch

        try:
            batch = batch_of(self._samples, [self._chosen[position] for position in positions])
        except ValueError as error:
            raise StepError(
                f"the {self._role} samples differ in size and do not stack into a batch",
                hint="resize or crop them under `prepare:`, or set `batch_size: 1`",
            ) from error
        feed = {name: torch.from_numpy(array) for name, array in batch.inputs.items()}
        labels = self._labels(batch) if self.labelled else None
        return Examples(tuple(positions), feed, labels)

    def _labels(self, batch: Batch) -> torch.Tensor:
        import numpy as np
        import torch

        if all(type(target) is int and target >= 0 for target in batch.targets):
            return torch.tensor(batch.targets, dtype=torch.int64)
        labels = [np.asarray(-1 if target is None else target) for target in batch.targets]
        for name, target, label in zip(batch.ids, batch.targets, labels, strict=True):
            if label.dtype.kind not in "ui" or (label.size and int(label.min()) < 0):
                raise self._odd(name, target)
        try:
            return torch.from_numpy(np.stack(labels).astype(np.int64))
        except ValueError as error:
            raise StepError(
                f"the labels of the {self._role} samples differ in shape",
                hint="set `distillation_weight: 1` to learn from the teacher alone",
            ) from error

    def _odd(self, name: str, target: Any) -> InputError:
        return InputError(
            f"wanted class numbers from 0 as labels, found {target!r}",
            place=f"{self._role} sample {name}",
            hint="give the data whole numbers as labels, or set `distillation_weight: 1`",
        )


def spread(count: int, most: int) -> list[int]:
    """At most `most` of `count` positions, evenly spaced: image folders are sorted by class."""
    picked = min(count, most)
    return [index * count // picked for index in range(picked)]
