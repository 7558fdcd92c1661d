"""Samples as tensors for passes that compute gradients; prepared once, as far as there is room.

`Views` are other views of images: mirrored and shifted at random, where the teacher stays right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from optcli.errors import InputError, StepError
from optcli.files.sample_cache import MEMORY_BYTES, CachedSampleSet, CachingSampleSet
from optcli.sample import Batch, SampleSet, batch_of

if TYPE_CHECKING:
    import torch

    from optcli.passes._torch.learning import Call, Loss

# How many samples decide, and the share of them that a view may cost the teacher.
_SAMPLES, _COST = 256, 0.02
_LEAST_SIDE, _MOST_CHANNELS = 16, 4
# Shifts that are tried, as parts of the shorter side.
_PARTS = (8, 16)


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
        target = self._samples[0].target
        # Annotated objects, as a detector's samples have them, are no labels of classes.
        self.labelled = target is not None and not isinstance(target, Mapping)

    def __len__(self) -> int:
        return len(self._chosen)

    def divided(self, held_out: int) -> tuple[ExampleSet, ExampleSet]:
        """The samples in two parts, the second with so many of them, evenly spaced."""
        held = spread(len(self), held_out)
        rest = sorted(set(range(len(self))) - set(held))
        return self._only(rest), self._only(held)

    def without_labels(self) -> ExampleSet:
        """The same samples, for a network whose outputs their labels say nothing of."""
        part = copy(self)
        part.labelled = False
        return part

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


@dataclass(frozen=True)
class Views:
    """How the images of the input `name` are changed: mirrored or not, and moved by up to `shift`.

    Chance comes from PyTorch's generator. Where an image is moved, its edge fills what is left.
    """

    name: str
    mirrors: bool
    shift: int

    def __call__(self, batch: Examples) -> Examples:
        """The batch with a view of each image."""
        import torch

        images = batch.feed[self.name]
        if self.mirrors:
            chosen = torch.rand(len(images)) < 0.5
            images = torch.where(chosen.view(-1, 1, 1, 1), images.flip(3), images)
        if self.shift:
            images = _moved(images, torch.randint(0, 2 * self.shift + 1, (len(images), 2)), self.shift)
        return _with(batch, self.name, images)


def harmless(teacher: Call, loss: Loss, examples: ExampleSet, size: int) -> Views | str:
    """Views under which a trained network stays as good on training samples; else why there is none.

    A mirrored digit is no digit, and a network that was trained on centred objects may know no others:
    the teacher's answers tell. With a view its top-1 on labels, or where there are none the share of
    answers that it keeps, may be at most 2 points lower. A detector has to learn what its teacher says
    of each view, whatever that is. `size` is that of a batch.
    """
    places = spread(len(examples), _SAMPLES)
    batches = list(examples.batches(places, size))
    name = _image(batches[0])
    if name is None:
        return "the network does not take one image of at least 16 by 16 with at most 4 channels"
    if loss.part_losses is not None:
        return Views(name, True, min(batches[0].feed[name].shape[2:]) // _PARTS[1])
    if any(batch.labels is not None and batch.labels.ndim != 1 for batch in batches):
        return "a label is not the class of an image"
    plain = [_answers(teacher, loss, batch) for batch in batches]
    if any(answers.ndim != 1 for answers in plain):
        return "an answer is not the class of an image"
    wanted = [a if b.labels is None else b.labels for a, b in zip(plain, batches, strict=True)]
    least = _right(plain, wanted) - _COST * len(places)

    def survives(views: Sequence[torch.Tensor]) -> bool:
        seen = [_with(batch, name, view) for batch, view in zip(batches, views, strict=True)]
        return _right([_answers(teacher, loss, each) for each in seen], wanted) >= least

    images = [batch.feed[name] for batch in batches]
    mirrors = survives([each.flip(3) for each in images])
    shifts = [min(images[0].shape[2:]) // part for part in _PARTS]
    shift = next((s for s in shifts if survives([_to_corners(each, s) for each in images])), 0)
    if not mirrors and not shift:
        return "the teacher is wrong more often on mirrored and on shifted images"
    return Views(name, mirrors, shift)


def _image(batch: Examples) -> str | None:
    """The one input that holds images with their channels first; None where that is not clear."""
    if len(batch.feed) != 1:
        return None
    ((name, value),) = batch.feed.items()
    if value.ndim != 4 or not value.is_floating_point():
        return None
    is_image = value.shape[1] <= _MOST_CHANNELS and min(value.shape[2:]) >= _LEAST_SIDE
    return name if is_image else None


def _with(batch: Examples, name: str, images: torch.Tensor) -> Examples:
    return replace(batch, feed={**batch.feed, name: images})


def _to_corners(images: torch.Tensor, shift: int) -> torch.Tensor:
    """The images moved as far as that goes, to one corner after the other."""
    import torch

    corners = torch.tensor([(0, 0), (0, 2), (2, 0), (2, 2)]) * shift
    return _moved(images, corners[torch.arange(len(images)) % 4], shift)


def _moved(images: torch.Tensor, places: torch.Tensor, shift: int) -> torch.Tensor:
    """Each image cut out of its own, wider by `shift` on every side, at its place (row, column)."""
    import torch
    from torch.nn import functional

    height, width = images.shape[2:]
    wide = functional.pad(images, (shift,) * 4, mode="replicate")
    cut = [
        each[:, row : row + height, column : column + width]
        for each, (row, column) in zip(wide, places.tolist(), strict=True)
    ]
    return torch.stack(cut)


def _answers(teacher: Call, loss: Loss, batch: Examples) -> torch.Tensor:
    import torch

    with torch.inference_mode():
        return loss.logits(teacher(batch)).argmax(1).cpu()


def _right(answers: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> int:
    return sum(int((a == b).sum()) for a, b in zip(answers, wanted, strict=True))
