"""Answers for the images of a shard: read and prepared by threads, computed in batches, in order.

Images are read ahead while the model computes. Where its threads take all cores, images are prepared
between its calls: a thread that prepares takes a core from one of the model's, and the others wait
for that one at the end of each layer.
"""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from optcli.errors import InputError
from optcli.serving.inference.listing import Stored
from optcli.serving.prediction.storage import DIGEST
from optcli.settings import TensorSpec, batch_range

if TYPE_CHECKING:
    from optcli.data.images import Images
    from optcli.outputs.postprocess import Postprocess
    from optcli.runners import Runner
    from optcli.serving.inference.confined_model import ConfinedModel

Read = Callable[[Stored], bytes]
# Batches that are read ahead, and how many of them wait as bytes to be prepared: photographs may take
# more room than the rows that become of them.
_AHEAD, _BODIES = 3, 1


@dataclass
class Answered:
    """The answers of a shard, in the order of its images, and reasons by id of those without one."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Ready:
    image: Stored
    digest: str
    row: np.ndarray
    placement: dict[str, Any]


class Answering:
    """Answers shards with one model. `postprocess` None: the answers are the outputs themselves.

    `readers` threads read ahead, `preparers` threads prepare. `in_turns`: not while the model computes.
    `whole` are outputs that have no dimension for the batch: the model takes one image.
    """

    def __init__(
        self,
        model: Runner | ConfinedModel,
        inputs: Sequence[TensorSpec],
        prepare: Images,
        postprocess: Postprocess | None,
        *,
        batch_size: int,
        readers: int,
        preparers: int = 1,
        in_turns: bool = False,
        whole: Collection[str] = (),
    ) -> None:
        self._model, self._prepare, self._postprocess = model, prepare, postprocess
        self._batch_size, self._least = batch_size, batch_range(inputs).min
        self._readers, self._preparers, self._in_turns = readers, preparers, in_turns
        self._whole = whole
        self._cores_are_free = threading.Event()
        self._cores_are_free.set()

    def answer(self, images: Sequence[Stored], read: Read) -> Answered:
        """The answers of a shard. Raises OSError where storage fails, and what the model raises."""
        answered = Answered()
        for batch in self._batches(images, read, answered):
            self._compute(batch, answered)
        return answered

    def _batches(
        self, images: Sequence[Stored], read: Read, answered: Answered
    ) -> Iterator[list[_Ready]]:
        """Rows of one shape, at most `batch_size` of them, in order."""
        batch: list[_Ready] = []
        for ready in self._prepared(images, read, answered):
            if batch and (len(batch) == self._batch_size or ready.row.shape != batch[0].row.shape):
                yield batch
                batch = []
            batch.append(ready)
        if batch:
            yield batch

    def _prepared(self, images: Sequence[Stored], read: Read, answered: Answered) -> Iterator[_Ready]:
        waiting = iter(images)
        ahead: deque[tuple[Stored, Future[_Ready | str]]] = deque()
        most, most_bodies = _AHEAD * self._batch_size, _BODIES * self._batch_size + self._readers
        begun, ended = 0, deque[None]()
        with ThreadPoolExecutor(self._readers) as readers, ThreadPoolExecutor(self._preparers) as pool:
            try:
                while True:
                    while len(ahead) < most and (not ahead or begun - len(ended) < most_bodies):
                        image = next(waiting, None)
                        if image is None:
                            break
                        future = pool.submit(self._ready, image, readers.submit(read, image))
                        future.add_done_callback(lambda _: ended.append(None))
                        ahead.append((image, future))
                        begun += 1
                    if not ahead:
                        return
                    image, future = ahead.popleft()
                    result = future.result()
                    if isinstance(result, str):
                        answered.failures[image.id] = result
                    else:
                        yield result
            finally:
                readers.shutdown(wait=False, cancel_futures=True)
                pool.shutdown(wait=True, cancel_futures=True)

    def _ready(self, image: Stored, reading: Future[bytes]) -> _Ready | str:
        """The row of an image, or why there is none."""
        try:
            body = reading.result()
        except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
            return f"cannot be read: {error.strerror or type(error).__name__}"
        self._cores_are_free.wait()
        try:
            row, placement = self._prepare.prepared(body)
            return _Ready(image, hashlib.sha256(body).hexdigest(), row, placement)
        except ValueError as error:
            return str(error)

    def _compute(self, batch: list[_Ready], answered: Answered) -> None:
        if len({each.row.shape for each in batch}) > 1:  # images of a batch have one size
            for each in batch:
                self._compute([each], answered)
            return
        # A model of a fixed batch size gets copies of the last row, whose answers are left out.
        rows = batch + [batch[-1]] * (self._least - len(batch))
        feed = self._prepare.feed([each.row for each in rows], [each.placement for each in rows])
        outputs = self._run(feed)
        for name, array in outputs.items():
            # Detections of a single image, as many as there are.
            alone = len(rows) == 1 and (self._postprocess is not None or name in self._whole)
            if array.shape[:1] != (len(rows),) and not alone:
                raise InputError(
                    f"the output {name!r} has the shape {list(array.shape)} for {len(rows)} images",
                    hint="answers need outputs with one row an image: export the model with a batch"
                    " dimension in every output",
                )
        for index, ready in enumerate(batch):
            try:
                row = self._row(outputs, index, ready)
                answered.rows.append({"id": ready.image.id, DIGEST: ready.digest, **row})
            except ValueError as error:
                answered.failures[ready.image.id] = str(error)

    def _run(self, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        if not self._in_turns:
            return self._model.run(feed)
        self._cores_are_free.clear()
        try:
            return self._model.run(feed)
        finally:
            self._cores_are_free.set()

    def _row(self, outputs: Mapping[str, np.ndarray], index: int, ready: _Ready) -> dict[str, Any]:
        if self._postprocess is None:
            one = {n: array if n in self._whole else array[index] for n, array in outputs.items()}
            if not all(np.isfinite(array).all() for array in one.values()):
                raise ValueError("the model gave values that are infinite or NaN")
            return {
                name: {"shape": list(array.shape), "values": array.ravel().astype(float).tolist()}
                for name, array in one.items()
            }
        size = self._prepare.size_of(ready.row)
        answer = self._postprocess.answer(outputs, ready.placement, size, index)
        if "classes" in answer:
            first = answer["classes"][0]
            return {"name": None, **first, "classes": answer["classes"]}
        return {**answer["image"], "boxes": answer["boxes"]}
