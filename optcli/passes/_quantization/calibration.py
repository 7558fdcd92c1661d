"""Calibration samples, fed to a quantizer one batch at a time: memory does not grow with the set."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from optcli.errors import StepError
from optcli.passes import Job
from optcli.sample import Sample, SampleSet, collate

if TYPE_CHECKING:
    import numpy as np

# Of glibc's malloc.h; and the size from which on a block is the system's own until it is freed.
_M_MMAP_THRESHOLD, _OWN_BLOCK_BYTES = -3, 64 * 1024


@dataclass(frozen=True)
class ModelInput:
    """What a model takes: a shape with the batch first, where None may be any size."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]


class CalibrationFeeds:
    """The batches to calibrate with, as `{input name: array}`; each iteration reads them anew.

    A model with a fixed batch size gets batches of that size; every other gets one sample at a time,
    so that statistics per sample are exact. At most `samples` samples are taken, evenly spread over
    the set, because image folders are sorted by class. Iterating raises `StepError` for a sample
    that does not fit the model or is not finite.
    """

    def __init__(self, job: Job, inputs: Sequence[ModelInput], samples: int) -> None:
        if job.calibration is None or len(job.calibration) == 0:
            raise StepError(
                "there are no calibration samples", hint="name some under `data: calibration:`"
            )
        self._job = job
        self._set: SampleSet = job.calibration
        self._inputs = tuple(inputs)
        self._whole = {spec.name for spec in job.inputs if spec.whole}
        first_sizes = (each.shape[0] or 1 for each in inputs if each.name not in self._whole)
        self.batch_size = max(first_sizes, default=1)
        count = min(samples, len(self._set))
        self._positions = [index * len(self._set) // count for index in range(count)]
        self._rounds = 0
        _give_activations_back()

    @property
    def samples(self) -> int:
        """How many samples are used; the last ones are used twice to fill a batch of fixed size."""
        return len(self._positions)

    def __len__(self) -> int:
        return -(-self.samples // self.batch_size)

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        self._rounds += 1
        for index in range(len(self)):
            start = index * self.batch_size
            positions = [self._positions[(start + i) % self.samples] for i in range(self.batch_size)]
            arrays = collate([self._fitting(self._set[position]) for position in positions]).inputs
            self._job.progress(
                (index + 1) / len(self),
                f"calibration round {self._rounds}: {index + 1} of {len(self)} batches",
            )
            yield {model_input.name: arrays[model_input.name] for model_input in self._inputs}

    def _fitting(self, sample: Sample) -> Sample:
        import numpy as np

        for model_input in self._inputs:
            array = sample.inputs.get(model_input.name)
            if array is None:
                raise StepError(
                    f"calibration sample {sample.id!r} has no {model_input.name!r}, which the model "
                    f"takes; it has {', '.join(sorted(sample.inputs))}",
                    hint="name the recipe's inputs as the model names them",
                )
            wanted = model_input.shape[model_input.name not in self._whole :]
            if not _fits(array.shape, wanted) or str(array.dtype) != model_input.dtype:
                raise StepError(
                    f"calibration sample {sample.id!r} does not fit the model's input "
                    f"{model_input.name!r}: found {_text(array.shape)} {array.dtype}, "
                    f"wanted {_text(wanted)} {model_input.dtype}",
                    hint="change the preparation under `data: calibration:`",
                )
            if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
                raise StepError(
                    f"calibration sample {sample.id!r} holds NaN or infinity in {model_input.name!r}",
                    hint="take this sample out of the calibration data",
                )
        return sample


def _give_activations_back() -> None:
    """Let large blocks go when they are freed, whatever small ones were kept beside them.

    glibc takes them from the heap once it has seen some freed. The few numbers that a calibrator keeps
    of each batch then hold whole activations: NNCF on PyTorch grew by 1.3 MB an image.
    """
    with suppress(OSError, AttributeError):  # another C library has other ways
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _OWN_BLOCK_BYTES)


def _fits(shape: tuple[int, ...], expected: tuple[int | None, ...]) -> bool:
    return len(shape) == len(expected) and all(
        expected_size is None or size == expected_size
        for size, expected_size in zip(shape, expected, strict=True)
    )


def _text(shape: tuple[int | None, ...]) -> str:
    return "x".join("?" if size is None else str(size) for size in shape) or "a single number"
