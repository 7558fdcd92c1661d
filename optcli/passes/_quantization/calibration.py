"""Calibration samples, fed to a quantizer one batch at a time, and ranges of activations on them.

Memory does not grow with the set. ONNX Runtime's own calibrators keep every activation (entropy,
percentile) or every batch's outputs (min-max) until the end. Here a first round over the data finds
smallest and largest values, inside the graph; a second one counts histograms whose bounds are known by
then, so that they do not depend on the order of the samples.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from optcli.errors import StepError, raised_as
from optcli.models.formats import onnx as onnx_format
from optcli.models.onnx_graphs.operators import KEEPS_VALUES
from optcli.models.onnx_graphs.protobuf import precision_of
from optcli.passes import Job
from optcli.sample import Sample, SampleSet, collate

if TYPE_CHECKING:
    import numpy as np
    from onnx import ModelProto
    from onnxruntime import InferenceSession

# Of glibc's malloc.h; and the size from which on a block is the system's own until it is freed.
_M_MMAP_THRESHOLD, _OWN_BLOCK_BYTES = -3, 64 * 1024

Method = Literal["minmax", "percentile", "entropy"]
Range = tuple[float, float]

# Bins on either side of zero.
BINS = 2048

# Operators that change no value, or none above zero: the extremes of their input give those of their
# output.
_FOLLOWS = KEEPS_VALUES | {"Relu"}

# Activations that are held at once; larger ones (a big fixed batch) are computed in several goes.
_HELD_BYTES = 500_000_000


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


@dataclass
class _Range:
    low: float = math.inf
    high: float = -math.inf
    elements: int = 0


def activation_ranges(
    model: ModelProto,
    tensors: Collection[str],
    feeds: Iterable[dict[str, np.ndarray]],
    method: Method,
    percentile: float,
    threads: int,
    weights: Path | None = None,
    masked: set[str] | None = None,
) -> dict[str, Range]:
    """Smallest and largest value to represent, for each of `tensors`; behind Relu zero is the smallest.

    `minmax` takes the extremes; `percentile` leaves (100 - percentile)/2 per cent of the values out on
    either side; `entropy` clips where the Kullback-Leibler divergence of the quantized distribution
    from the real one is smallest (Migacz, "8-bit inference with TensorRT", GTC 2017). `weights` is the
    folder with the model's external data. Activations that reach minus infinity, as masks do in front
    of Softmax, have no range: their names are added to `masked`. Raises `StepError` where an activation
    is not finite otherwise, or where `masked` is None.
    """
    if not tensors:
        return {}
    seen = _extremes(model, tensors, feeds, threads, weights)
    endless = {name for name, each in seen.items() if each.low == -math.inf}
    if endless and masked is None:
        raise _not_finite(min(endless))
    seen = {name: each for name, each in seen.items() if name not in endless}
    if masked is not None:
        masked |= endless
    if method == "minmax":
        return {name: (each.low, each.high) for name, each in seen.items()}
    ranges = {name: (each.low, each.high) for name, each in seen.items()}
    counted = {name: each for name, each in seen.items() if _largest(each) > 0}
    for name, counts in _histograms(model, counted, feeds, threads, weights):
        low, high = ranges[name]
        if method == "percentile":
            cut = _percentile(counts, max(-low, high), percentile)
        else:
            cut = _least_divergence(counts, max(-low, high), one_sided=low >= 0 or high <= 0)
        ranges[name] = (max(low, cut[0]), min(high, cut[1]))
    return ranges


def float_tensors(
    model: ModelProto, op_types: Collection[str], ignored: Collection[str] = ()
) -> set[str]:
    """Names of the FP32 values, but for weights, that operators of the types read or write.

    `ignored` names nodes that do not count.
    """
    from onnx import TensorProto

    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer}
    floats = {
        value.name
        for value in (*graph.input, *graph.output, *graph.value_info)
        if value.type.tensor_type.elem_type == TensorProto.FLOAT
    }
    return {
        name
        for node in graph.node
        if node.op_type in op_types and node.name not in ignored
        for name in (*node.input, *node.output)
        if name in floats and name not in weights
    }


def _extremes(
    model: ModelProto,
    tensors: Collection[str],
    feeds: Iterable[dict[str, np.ndarray]],
    threads: int,
    weights: Path | None,
) -> dict[str, _Range]:
    import onnx
    from onnx import TensorProto, helper

    extended = onnx.ModelProto()
    extended.CopyFrom(model)
    graph = extended.graph
    derived = _derived(model, tensors)
    names = sorted(set(tensors) - derived.keys())
    behind_relu = {node.output[0] for node in graph.node if node.op_type == "Relu" and not node.domain}
    types = {"ReduceMax": TensorProto.FLOAT, "Size": TensorProto.INT64, "ReduceMin": TensorProto.FLOAT}
    outputs: list[tuple[str, str]] = []
    del graph.output[:]
    for index, name in enumerate(names):
        for kind, type_ in types.items():
            if kind == "ReduceMin" and name in behind_relu:
                continue
            output = f"optcli_{kind}_{index}"
            more = {} if kind == "Size" else {"keepdims": 0}
            graph.node.append(helper.make_node(kind, [name], [output], name=output, **more))
            graph.output.append(helper.make_tensor_value_info(output, type_, []))
            outputs.append((name, kind))
    session = _session(extended, threads, weights)
    seen = {name: _Range() for name in names}
    for feed in feeds:
        values = dict(zip(outputs, map(float, _run(session, None, feed)), strict=True))
        for name in names:
            high, size = values[name, "ReduceMax"], values[name, "Size"]
            low = values.get((name, "ReduceMin"), 0.0)
            if math.isnan(low) or math.isnan(high) or high == math.inf:
                raise _not_finite(name)
            span = seen[name]
            span.low, span.high = min(span.low, low), max(span.high, high)
            span.elements = max(span.elements, int(size))
    for name, (source, kind) in derived.items():
        span = seen[source]
        seen[name] = (
            span if kind != "Relu" else _Range(max(span.low, 0), max(span.high, 0), span.elements)
        )
    return {name: seen[name] for name in sorted(seen)}


def _not_finite(name: str) -> StepError:
    return StepError(
        f"the activation {name!r} is not finite on a calibration sample",
        hint="check what `prepare` feeds the model; where infinity is intended (a mask of attention), "
        "keep the node in floating point with ignored_names",
    )


def _derived(model: ModelProto, tensors: Collection[str]) -> dict[str, tuple[str, str]]:
    """Tensors whose extremes follow from those of an earlier one: by name, that one and the operator.

    Every second tensor of most networks is behind Relu, and looking at them takes longer than they do.
    """
    sources: dict[str, tuple[str, str]] = {}
    for node in model.graph.node:  # in the order of computing
        follows = node.op_type in _FOLLOWS and not node.domain and bool(node.input)
        if follows and node.input[0] in tensors and node.output[0] in tensors:
            sources[node.output[0]] = (node.input[0], node.op_type)
    return sources


def _histograms(
    model: ModelProto,
    seen: dict[str, _Range],
    feeds: Iterable[dict[str, np.ndarray]],
    threads: int,
    weights: Path | None,
) -> Iterator[tuple[str, np.ndarray]]:
    """Counts of the values of each tensor in 2 * BINS bins between -largest and +largest."""
    import numpy as np
    import onnx

    extended = onnx.ModelProto()
    extended.CopyFrom(model)
    values = {value.name: value for value in (*model.graph.value_info, *model.graph.input)}
    values |= {value.name: value for value in model.graph.output}
    del extended.graph.output[:]
    extended.graph.output.extend(values[name] for name in seen)
    session = _session(extended, threads, weights)
    counts = {name: np.zeros(2 * BINS, np.int64) for name in seen}
    groups = list(_groups({name: 4 * each.elements for name, each in seen.items()}))
    for feed in feeds:
        for group in groups:
            for name, array in zip(group, _run(session, group, feed), strict=True):
                _count(array, _largest(seen[name]), counts[name])
    yield from counts.items()


def _count(array: np.ndarray, largest: float, counts: np.ndarray) -> None:
    import numpy as np

    scaled = array.reshape(-1).astype(np.float32)
    scaled *= np.float32(BINS / largest)
    scaled += np.float32(BINS)
    index = scaled.astype(np.int32)
    np.clip(index, 0, 2 * BINS - 1, out=index)
    counts += np.bincount(index, minlength=2 * BINS)


def _groups(sizes: dict[str, int]) -> Iterator[list[str]]:
    group: list[str] = []
    held = 0
    for name, size in sizes.items():
        if group and held + size > _HELD_BYTES:
            yield group
            group, held = [], 0
        group.append(name)
        held += size
    if group:
        yield group


def _percentile(counts: np.ndarray, largest: float, percentile: float) -> Range:
    import numpy as np

    share = np.cumsum(counts) / counts.sum()
    outside = (100 - percentile) / 200
    low = int(np.searchsorted(share, outside, side="right"))
    high = int(np.searchsorted(share, 1 - outside)) + 1
    width = largest / BINS
    return (min(low, 2 * BINS - 1) - BINS) * width, (min(high, 2 * BINS) - BINS) * width


def _least_divergence(counts: np.ndarray, largest: float, one_sided: bool) -> Range:
    """Where to clip |values|, so that 8 bits tell most about them.

    On absolute values: with a sign, half of the 256 levels are left for either side. The bin at zero
    counts as its neighbour does, as in NVIDIA's pytorch-quantization (calib/histogram.py): behind ReLU
    it holds half of all values, all exact, and would decide everything.
    """
    import numpy as np

    folded = counts[BINS:] + counts[BINS - 1 :: -1]
    folded[0] = folded[1]
    if not folded.any():
        return -largest, largest
    levels = 256 if one_sided else 128
    best, bins = math.inf, BINS
    for size in range(levels, BINS + 1, 8):
        divergence = _divergence(folded, size, levels)
        if divergence < best:
            best, bins = divergence, size
    limit = bins * largest / BINS
    assert np.isfinite(limit)
    return -limit, limit


def _divergence(folded: np.ndarray, size: int, levels: int) -> float:
    import numpy as np

    real = folded[:size].astype(np.float64)
    filled = real > 0
    starts = np.arange(levels) * size // levels
    merged = np.add.reduceat(real, starts)
    shared = np.add.reduceat(filled.astype(np.float64), starts)
    spread = np.where(shared > 0, merged / np.maximum(shared, 1), 0.0)
    lengths = np.diff(np.append(starts, size))
    quantized = np.repeat(spread, lengths) * filled
    real[-1] += folded[size:].sum()
    real, quantized = _smoothed(real), _smoothed(quantized)
    return float((real * np.log(real / quantized)).sum())


def _smoothed(distribution: np.ndarray) -> np.ndarray:
    """Normalized, with a little everywhere, so that no logarithm is infinite."""
    import numpy as np

    total = distribution.sum()
    share = distribution / total if total else np.full_like(distribution, 1 / distribution.size)
    return (share + 1e-9) / (1 + 1e-9 * distribution.size)


def _largest(seen: _Range) -> float:
    return max(-seen.low, seen.high)


def _session(model: ModelProto, threads: int, weights: Path | None) -> InferenceSession:
    # ONNX Runtime fuses products with pairs of FP8, for which it then has no kernel.
    optimized = precision_of(model) != "fp8"
    message = "ONNX Runtime cannot load the model to record its activations"
    with raised_as(StepError, message, hint="put optimize_onnx before this pass"):
        content = model.SerializeToString()
        return onnx_format.session(content, threads, optimized=optimized, weights=weights)


def _run(
    session: InferenceSession, names: list[str] | None, feed: dict[str, np.ndarray]
) -> list[np.ndarray]:
    hint = "check that the recipe's inputs fit the model"
    with raised_as(StepError, "the model does not run on calibration data", hint=hint):
        return list(session.run(names, feed))
