"""What the comparing process does: samples through both networks, rows with advice, worst first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli import data
from optcli.accuracy.layers import advice, exported, onnx, openvino, torch
from optcli.accuracy.layers.measured import Measured
from optcli.artifact import Artifact, Format
from optcli.data import DataSettings
from optcli.formats import operator_libraries
from optcli.results.layers import LayerError, Layers
from optcli.sample import cycled
from optcli.settings import TensorSpec, batch_range
from optcli.workers import Channel

if TYPE_CHECKING:
    import numpy as np

    Feed = dict[str, np.ndarray]


@dataclass(frozen=True)
class LayersRequest:
    """What to compare on which samples; see `optcli.accuracy.layers.compare`."""

    baseline: Artifact
    child: Artifact
    inputs: tuple[TensorSpec, ...]
    data: DataSettings
    folder: Path
    samples: int
    threads: int
    made_by: dict[str, Any]


def serve(request: LayersRequest, channel: Channel) -> Layers:
    """Compare two artifacts layer by layer: rows with advice, worst first."""
    feeds, count = _feeds(request)
    measured = _measured(request.baseline, request.child, feeds, request.inputs, request.threads)
    rows = sorted(measured.rows, key=lambda row: row.rank)
    advised = [_advised(row, request.made_by, request.child.precision) for row in rows]
    return Layers(
        rows=tuple(advised), compared=measured.compared, samples=count, reason=measured.reason
    )


def _measured(
    baseline: Artifact,
    child: Artifact,
    feeds: Sequence[Feed],
    inputs: Sequence[TensorSpec],
    threads: int,
) -> Measured:
    for artifact in (baseline, child):
        operator_libraries.bring(artifact.facts.get("imports", ()))
    if child.format == Format.ONNX:
        return onnx.compare(baseline, child, feeds, threads)
    if child.format == Format.OPENVINO:
        return openvino.compare(baseline, child, feeds, threads)
    if baseline.format == child.format == Format.TORCH:
        return torch.compare(baseline, child, feeds, inputs)
    return exported.compare(baseline, child, feeds, inputs)


def _advised(row: LayerError, made_by: dict[str, Any], precision: str) -> LayerError:
    return row.model_copy(update={"advice": advice.of(row, made_by, precision)})


def _feeds(request: LayersRequest) -> tuple[list[Feed], int]:
    """The first samples in the smallest batches that the model takes: they bound what is in memory."""
    samples = data.open(request.data, request.folder, request.inputs)
    size = batch_range(request.inputs).min
    count = max(size, min(request.samples, len(samples)))
    return [dict(cycled(samples, size, start).inputs) for start in range(0, count, size)], count
