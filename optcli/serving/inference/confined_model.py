"""A model from elsewhere in a worker of Ray: it computes in a process that can only read.

Arrays go through a folder that both have in their memory; messages say where they lie.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from optcli import runners
from optcli.artifact import Artifact
from optcli.errors import StepError
from optcli.files import folders
from optcli.models.engines.running.shared_arrays import SharedArrays, SharedFolder
from optcli.settings import TensorSpec
from optcli.workers import Channel, spawn

_MOST_BYTES = 2**40
_OPEN_S, _CALL_S = 600.0, 3600.0
_KINDS = "biufc"
_ARRAYS = "arrays"


@dataclass(frozen=True)
class OpenRequest:
    """An artifact with its runner, and the files where inputs and outputs lie."""

    artifact: Artifact
    runner: str
    options: dict[str, Any]
    inputs: tuple[TensorSpec, ...]
    feeds: Path
    results: Path


@dataclass(frozen=True)
class OpenedModel:
    """Outputs that belong to a call as a whole."""

    without_batch: tuple[str, ...]


@dataclass(frozen=True)
class Placed:
    """Arrays in a file: name, element type, shape and place of each."""

    layout: tuple[tuple[str, str, tuple[int, ...], int], ...]


class ConfinedModel:
    """What `Answering` calls in place of a runner. Raises what the runner raises."""

    def __init__(
        self,
        artifact: Artifact,
        runner: str,
        options: Mapping[str, Any],
        inputs: tuple[TensorSpec, ...],
    ) -> None:
        # Of the folder with the inputs it can only read: what it put there would be written through.
        self._folders = SharedFolder(), SharedFolder()
        feeds, results = (each.path / _ARRAYS for each in self._folders)
        self._feeds, self._results = SharedArrays(feeds), SharedArrays(results, only_reads=True)
        self._child = spawn(
            "optcli.serving.inference.confined_model:serve",
            OpenRequest(artifact, runner, dict(options), inputs, feeds, results),
            environment=runners.find(runner).model_validate(options).environment(),
            confined=(results.parent,),
        )
        try:
            self._without_batch = frozenset(self._child.receive(OpenedModel, _OPEN_S).without_batch)
        except BaseException:
            self.close()
            raise

    def without_batch(self) -> frozenset[str]:
        """Outputs that belong to a call as a whole."""
        return self._without_batch

    def run(self, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One batch."""
        self._child.send(_written(self._feeds, feed))
        placed = self._child.receive(Placed, _CALL_S)
        _require_arrays(placed)
        try:
            views = self._results.read(placed.layout)
        except (OSError, ValueError) as error:
            raise StepError(f"the outputs of the model's process cannot be read: {error}") from error
        return {name: view.copy() for name, view in views.items()}

    def close(self) -> None:
        """End the process."""
        self._child.kill()
        for each in self._folders:
            folders.remove(each.path)  # however deep what the other process left
            each.remove()


def serve(request: OpenRequest, channel: Channel) -> None:
    """Open the model and compute until nobody asks any more; for a worker."""
    feeds, results = SharedArrays(request.feeds, only_reads=True), SharedArrays(request.results)
    kind = runners.find(request.runner)
    with kind.model_validate(request.options).open(request.artifact, request.inputs) as runner:
        channel.send(OpenedModel(tuple(sorted(runner.without_batch()))))
        while (placed := channel.receive(Placed)) is not None:
            # Copies: some libraries take no arrays that cannot be written to.
            feed = {name: view.copy() for name, view in feeds.read(placed.layout).items()}
            channel.send(_written(results, runner.run(feed)))


def _written(arrays: SharedArrays, values: Mapping[str, np.ndarray]) -> Placed:
    layout = arrays.write(values)
    return Placed(tuple((name, kind, tuple(shape), start) for name, kind, shape, start in layout))


def _require_arrays(placed: Placed) -> None:
    """Raise `StepError` for what are no arrays: the worker may say anything."""
    for name, kind, shape, start in placed.layout:
        try:
            element = np.dtype(kind)
        except (TypeError, ValueError):
            element = np.dtype(object)
        sound = element.kind in _KINDS and start >= 0 and all(size >= 0 for size in shape)
        if not sound or start + math.prod(shape) * element.itemsize > _MOST_BYTES:
            raise StepError(f"the model's process gave an output {name[:40]!r} that is no array")
