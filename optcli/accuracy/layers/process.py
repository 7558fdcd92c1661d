"""What the comparing process does: samples through both networks, rows with advice, worst first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli import data
from optcli.accuracy.layers import advice, exported, onnx, openvino, torch
from optcli.accuracy.layers.measured import MeasuredLayers
from optcli.artifact import Artifact, Format
from optcli.data import DataSettings
from optcli.models.formats import operator_libraries
from optcli.results.layers import Layers
from optcli.sample import cycled
from optcli.settings import TensorSpec, batch_range
from optcli.workers import Channel

if TYPE_CHECKING:
    import numpy as np

    Feed = dict[str, np.ndarray]


SAMPLES = 8


@dataclass(frozen=True)
class LayersRequest:
    """What to compare on which samples.

    `inputs` are the recipe's; paths in `data` are relative to `folder`. `made_by` is the step that made
    the child, `{"step": pass, "options": {...}}`, as the store keeps it: the advice names its options.
    """

    baseline: Artifact
    child: Artifact
    inputs: tuple[TensorSpec, ...]
    data: DataSettings
    folder: Path
    samples: int = SAMPLES
    threads: int = 1
    made_by: dict[str, Any] = field(default_factory=dict)


def serve(request: LayersRequest, channel: Channel) -> Layers:
    """Compare two artifacts layer by layer: rows with advice, worst first."""
    samples = data.open(request.data, request.folder, request.inputs)
    # The smallest batches that the model takes: they bound what is in memory.
    size = batch_range(request.inputs).min
    count = max(size, min(request.samples, len(samples)))
    feeds = [dict(cycled(samples, size, start).inputs) for start in range(0, count, size)]
    measured = _measured(request, feeds)
    rows = tuple(
        row.model_copy(update={"advice": advice.of(row, request.made_by, request.child.precision)})
        for row in sorted(measured.rows, key=lambda row: row.rank)
    )
    return Layers(rows=rows, compared=measured.compared, samples=count, reason=measured.reason)


def _measured(request: LayersRequest, feeds: Sequence[Feed]) -> MeasuredLayers:
    baseline, child = request.baseline, request.child
    inputs, threads = request.inputs, request.threads
    for artifact in (baseline, child):
        operator_libraries.bring(artifact.facts.get("imports", ()))
    if child.format == Format.ONNX:
        return onnx.compare(baseline, child, feeds, threads)
    if child.format == Format.OPENVINO:
        return openvino.compare(baseline, child, feeds, threads)
    if baseline.format == child.format == Format.TORCH:
        return torch.compare(baseline, child, feeds, inputs)
    return exported.compare(baseline, child, feeds, inputs)
