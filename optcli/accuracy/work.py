"""What an evaluation works with: its data, its metric, and how a batch becomes records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from optcli import data, environment
from optcli.accuracy import decoding, detections, metrics, shards
from optcli.accuracy.evaluation import EvaluationRequest
from optcli.accuracy.metrics import Metric, Predictions
from optcli.errors import InputError
from optcli.files.sample_cache import SHARED_BYTES, CachedSampleSet, CachingSampleSet, digests_of
from optcli.runners import Runner
from optcli.sample import Batch, SampleSet, batch_of, collate
from optcli.settings import batch_range, size_bytes
from optcli.settings.accuracy import LARGEST_BATCH

if TYPE_CHECKING:
    import numpy as np


# The batch size where none is asked for: as many samples as fit into so many bytes, so that tiny ones
# do not each cost a call, and large ones stay in the caches of the processor.
_AT_ONCE_BYTES = 4 << 20
_AT_ONCE = (32, LARGEST_BATCH)
_LOOKS = 8  # samples that say which outputs have a dimension for the batch


@dataclass(frozen=True)
class EvaluationWork:
    """What an evaluating process makes of its request."""

    request: EvaluationRequest

    @property
    def output(self) -> str | None:
        return self.request.settings.output if self.request.settings else None

    @cached_property
    def metric(self) -> Metric | None:
        settings = self.request.settings
        return metrics.make(settings, self.request.folder, self.class_names) if settings else None

    @cached_property
    def decode(self) -> decoding.Decode | decoding.Detector | None:
        request = self.request
        decoded = request.postprocess is not None and request.postprocess.detector is not None
        classes = self._classes() if decoded else None
        return decoding.make(
            request.postprocess,
            request.folder,
            classes,
            refuse=request.reference and not request.guessed,
            guessed=request.guessed,
        )

    def _classes(self) -> int | None:
        """How many classes the data have; None: nobody knows."""
        names = self.class_names()
        return len(names) if names else None

    def class_names(self) -> tuple[str, ...] | None:
        """The names of the data's classes; None: nobody knows."""
        try:
            return data.class_names(self.request.data, self.request.folder)
        except InputError:  # a machine may have the prepared samples alone
            return None

    @property
    def kept_bytes(self) -> int:
        alone = self.decode is None or self.request.guessed
        return shards.BYTES if alone else shards.BYTES_BESIDE_DETECTIONS

    @cached_property
    def samples(self) -> SampleSet:
        """The evaluation set: as somebody has prepared it already, where the request says so.

        An evaluation goes through its part once and may leave what it has prepared to others.
        """
        request = self.request
        if request.prepared is not None:
            return CachedSampleSet(request.prepared)
        samples = data.open(request.data, request.folder, request.inputs)
        if not len(samples):
            raise InputError(
                "the evaluation set is empty",
                place="data.evaluation",
                hint="look at its split and samples",
            )
        folder = request.keep / f"part-{request.job}" if request.keep else None
        # Nothing is kept in memory of what is read once.
        return CachingSampleSet(
            samples,
            folder,
            span=self.span(len(samples)),
            shared_bytes=0 if folder is None else SHARED_BYTES,
            memory_bytes=0,
            threads=max(1, environment.usable_cores() // request.jobs),
        )

    def span(self, total: int) -> range:
        """Those of `total` samples that are in the part: whole batches, the same as without parts.

        What a batch holds may decide the last digit, so every part has the batches of the whole.
        """
        batches, job = -(-total // self.size), self.request.job
        ends = (self.size * (each * batches // self.request.jobs) for each in (job, job + 1))
        return range(*(min(total, end) for end in ends))

    @property
    def fewest(self) -> int:
        return batch_range(self.request.feeds).min

    @property
    def size(self) -> int:
        """The batch size: as asked for, or by the size of a sample; within what the model takes."""
        settings, prepare = self.request.settings, self.request.data.prepare
        requested = settings.batch_size if settings else None
        if prepare is not None and prepare.inside == "all":  # images of a batch have one size
            requested = 1
        if requested is None:  # a power of two, by the size of a sample alone
            at_once = max(1, _AT_ONCE_BYTES // max(1, size_bytes(self.request.inputs, 1)))
            requested = max(_AT_ONCE[0], min(1 << (at_once.bit_length() - 1), _AT_ONCE[1]))
        return max(self.fewest, min(requested, batch_range(self.request.feeds).max))

    def batches(self, positions: Sequence[int]) -> Iterator[tuple[Batch, int]]:
        """Batches of these samples, and how many rows of each count.

        The last batch is filled up with the samples that follow where the model takes no smaller one.
        """
        samples = self.samples
        for start in range(0, len(positions), self.size):
            chosen = list(positions[start : start + self.size])
            missing = range(1, 1 + self.fewest - len(chosen))
            filled = [*chosen, *((chosen[-1] + ahead) % len(samples) for ahead in missing)]
            yield batch_of(samples, filled), len(chosen)

    def run(self, model: Runner, batch: Batch) -> dict[str, np.ndarray]:
        """The model's outputs; inputs get the artifact's own names and element types."""
        feed = {
            reference.name: batch.inputs[ours.name].astype(reference.dtype, copy=False)
            for ours, reference in zip(self.request.inputs, self.request.feeds, strict=True)
        }
        return model.run(feed)

    def whole(self, model: Runner) -> frozenset[str]:
        """Outputs without a dimension for the batch, of a model that takes one sample.

        The model declares them, or they have another length than 1 for one of the first samples.
        """
        if batch_range(self.request.feeds).max > 1:
            return frozenset()
        declared = model.without_batch()
        if declared or self.decode is None or isinstance(self.decode, decoding.Detector):
            return declared
        looks = range(min(_LOOKS, len(self.samples)))
        calls = [self.run(model, collate([self.samples[index]])) for index in looks]
        return frozenset(k for outputs in calls for k, a in outputs.items() if a.ndim and len(a) != 1)

    def seen(
        self,
        batch: Batch,
        rows: int,
        outputs: dict[str, np.ndarray],
        whole: frozenset[str] = frozenset(),
    ) -> Predictions:
        """What counts of a batch: the first `rows` samples, decoded where the recipe says how."""
        count = len(batch.ids)
        cut = {k: a[:rows] if a.ndim and len(a) == count else a for k, a in outputs.items()}
        seen = Predictions(
            batch.ids[:rows], batch.targets[:rows], batch.meta[:rows], cut, None, self.output, whole
        )
        if self.decode is None:
            return seen
        image = next((x for x in batch.inputs.values() if x.ndim == 4), None)
        size = (0, 0) if image is None else _size(image.shape)
        decoded = decoding.decode(self.decode, seen, size)
        return replace(seen, decoded=decoded)

    def contents(self, positions: Sequence[int], batch: Batch) -> np.ndarray:
        """A digest of each sample's inputs: those of one content are one piece of evidence.

        `batch` begins with these samples.
        """
        if isinstance(self.samples, CachingSampleSet | CachedSampleSet):
            return self.samples.contents(positions, batch)
        return digests_of(batch, len(positions))

    def remarks(self) -> list[str]:
        """What the preparation does otherwise than the decoding takes for granted."""
        if self.request.guessed:
            return []
        return decoding.remarks(self.request.postprocess, self.request.data.prepare)

    def records(self, seen: Predictions, before: int = 0) -> dict[str, np.ndarray]:
        """The metric's records of a batch, and its detections.

        `before` it were so many samples, which had labels.
        """
        columns = detections.records(seen.decoded)
        columns |= detections.pairs(seen.decoded, seen.targets)
        if self.metric is None or self.request.settings is None:
            return columns
        self.require_labels(seen, before)
        return {**self.metric.records(seen), **columns}

    def require_labels(self, seen: Predictions, before: int = 0) -> None:
        """Raise `InputError` where the metric needs labels and these samples, or some, have none."""
        assert self.metric is not None
        assert self.request.settings is not None
        if self.metric.needs_labels:
            _labelled(self.request.settings.metric, seen.ids, seen.targets, before)

    def check_labels(self, seen: Predictions) -> None:
        """Before all samples are run: every label that the data tells without reading the samples."""
        targets = getattr(self.samples, "targets", lambda: None)()
        if targets is None or self.metric is None or self.request.settings is None:
            return
        if self.metric.needs_labels:
            _labelled(self.request.settings.metric, seen.ids, seen.targets)
        for place, target in targets:
            if target is None and self.metric.needs_labels:
                _labelled(self.request.settings.metric, (*seen.ids, place), (*seen.targets, None))
            if target is not None:
                self.metric.check(target, place, seen)


def _labelled(metric: str, ids: Sequence[str], targets: Sequence[Any], before: int = 0) -> None:
    without = [name for name, target in zip(ids, targets, strict=True) if target is None]
    if not without:
        return
    some = before > 0 or len(without) < len(ids)
    raise InputError(
        "some samples of the evaluation set have a label and some have none"
        if some
        else f"{metric} needs labels, and the evaluation set has none",
        place=without[0] if some else "data.evaluation",
        hint="label all of them, or choose those with labels by split"
        if some
        else "label the samples, or remove `accuracy:`: then outputs alone are compared",
    )


def _size(shape: tuple[int, ...]) -> tuple[int, int]:
    """Height and width of a batch of images, channels first or last."""
    last = shape[3] in (1, 3, 4) and shape[1] not in (1, 3, 4)
    return (shape[1], shape[2]) if last else (shape[2], shape[3])
