"""Layer by layer in ONNX Runtime with its optimizations off: a float network and its child."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from optcli.accuracy.layers import onnx_weights
from optcli.accuracy.layers.measured import Measured, without_rescaled
from optcli.accuracy.layers.onnx_cut import Cut, exposed
from optcli.accuracy.layers.onnx_graph import Graph, Pair, layer, pairs
from optcli.accuracy.layers.tally import Tally
from optcli.artifact import Artifact
from optcli.errors import StepError, first_line
from optcli.formats import onnx as onnx_format
from optcli.layer_errors import LayerError

if TYPE_CHECKING:
    import numpy as np
    from onnx import ModelProto
    from onnxruntime import InferenceSession

    Feed = Mapping[str, np.ndarray]

# Tensors looked at in one go: of a batch of one, even large images take some hundred MB.
_AT_ONCE = 32


@dataclass
class _Row:
    whole: Tally = field(default_factory=Tally)
    own: Tally = field(default_factory=Tally)
    values: int = 0
    outside: int = 0
    shape: tuple[int, ...] = ()


def compare(baseline: Artifact, child: Artifact, feeds: Sequence[Feed], threads: int) -> Measured:
    """Rows of activations and weights; `feeds` are batches of one shape, by names of the recipe."""
    floats, other = (Graph(onnx_format.open(each.path)) for each in (baseline, child))
    found = pairs(floats, other)
    if not found:
        return Measured(
            reason="no layer of the two networks goes by the same name, nor in the same order"
        )
    with tempfile.TemporaryDirectory(prefix="optcli-layers-") as folder:
        work = _Work(floats, other, found, Path(folder), threads)
        for start in range(0, len(found), _AT_ONCE):
            work.look(found[start : start + _AT_ONCE], feeds)
    if not work.rows:
        return Measured(reason=work.unlike)
    rows = [work.error(pair) for pair in found if pair.tensor in work.rows]
    weights = list(onnx_weights.errors(floats, other, found))
    return Measured(tuple(without_rescaled([*rows, *weights])), len(rows) + len(weights), work.reason)


class _Work:
    """Both networks, and the sums so far."""

    def __init__(
        self, floats: Graph, child: Graph, found: Sequence[Pair], folder: Path, threads: int
    ) -> None:
        self.floats, self.child, self._folder, self._threads = floats, child, folder, threads
        self._every = {face: pair for pair in found for face in pair.faces}
        self._tensors = {pair.tensor for pair in found}
        self._types: dict[str, np.dtype] = {}
        self._ranges: dict[str, tuple[float, float]] = {}
        self.rows: dict[str, _Row] = {}
        self._shapes: dict[str, str] = {}

    @property
    def unlike(self) -> str:
        """Why there are no rows."""
        first = next(iter(self._shapes.values()), "the networks hold no floating-point tensors")
        return f"the layers cannot be compared: {first}"

    @property
    def reason(self) -> str | None:
        """Why some tensors have no row."""
        count = len(self._shapes)
        return f"{count} tensors have other shapes: {self.unlike}" if count else None

    def look(self, wanted: Sequence[Pair], feeds: Sequence[Feed]) -> None:
        """Compare some tensors on all batches: as both networks run, and each layer by itself."""
        cut = Cut(self.child, wanted, self._every)
        names = [pair.tensor for pair in wanted]
        needs = tuple(dict.fromkeys([*names, *cut.needs]))
        exact = _Session(*exposed(self.floats, needs), needs, self._folder, self._threads)
        outs = [pair.out for pair in wanted]
        whole = _Session(*exposed(self.child, outs), names, self._folder, self._threads)
        alone: _Session | None = None
        for feed in feeds:
            floats, found = exact.run(_named(self.floats, feed)), whole.run(_named(self.child, feed))
            self._types.update({name: array.dtype for name, array in found.items()})
            if alone is None:
                fits = self._fitting(wanted, floats, found)
                cut = Cut(self.child, fits, self._every)
                if not fits:
                    return
                model = cut.model(floats, self._types)
                tensors, called = list(cut.outputs), list(cut.outputs.values())
                alone = _Session(model, called, tensors, self._folder, self._threads)
            own = alone.run(
                {
                    name: floats[tensor].astype(self._types.get(tensor, floats[tensor].dtype))
                    for name, tensor in cut.fed.items()
                }
            )
            self._add(fits, floats, found, own)

    def _fitting(self, wanted: Sequence[Pair], floats: Feed, found: Feed) -> list[Pair]:
        """Pairs of floats in the same shape; what they are not is kept."""
        fits = []
        for pair in wanted:
            ours, theirs = floats[pair.tensor], found[pair.tensor]
            if ours.shape != theirs.shape:
                shapes = (
                    f"{pair.tensor} is {list(ours.shape)} in one and {list(theirs.shape)} in the other"
                )
                self._shapes[pair.tensor] = shapes
            elif ours.dtype.kind == "f" and theirs.dtype.kind == "f" and ours.ndim:
                fits.append(pair)
        return fits

    def _add(self, fits: Sequence[Pair], floats: Feed, found: Feed, own: Feed) -> None:
        for pair in fits:
            exact = floats[pair.tensor]
            row = self.rows.setdefault(pair.tensor, _Row(shape=exact.shape))
            row.whole.add(exact, found[pair.tensor])
            row.own.add(exact, own[pair.tensor])
            bounds = self._bounds(pair)
            if bounds is not None:
                row.values += exact.size
                row.outside += int(((exact < bounds[0]) | (exact > bounds[1])).sum())

    def _bounds(self, pair: Pair) -> tuple[float, float] | None:
        """The values that a tensor's integers can stand for."""
        import numpy as np
        from onnx import numpy_helper

        if pair.tensor not in self._ranges:
            scales = (self.child.scale_of(face) for face in pair.faces)
            scale, zero = next((each for each in scales if each), ("", ""))
            weights = self.child.weights
            if scale not in weights or zero not in weights:
                return None
            step, point = (numpy_helper.to_array(weights[name]).ravel()[0] for name in (scale, zero))
            if not np.issubdtype(point.dtype, np.integer):
                return None
            info = np.iinfo(point.dtype)
            low, high = ((end - int(point)) * float(step) for end in (info.min, info.max))
            self._ranges[pair.tensor] = (low - abs(float(step)), high + abs(float(step)))
        return self._ranges[pair.tensor]

    def error(self, pair: Pair) -> LayerError:
        """The row of a tensor."""
        row = self.rows[pair.tensor]
        node = layer(self.floats, pair.tensor, self._tensors - {pair.tensor})
        return LayerError(
            tensor=pair.tensor,
            node=node.name if node is not None else "",
            operator=node.op_type if node is not None else "input",
            shape=row.shape,
            kind="activation",
            own_db=row.own.sqnr_db,
            sqnr_db=row.whole.sqnr_db,
            cosine=row.whole.cosine,
            finite=row.own.finite,
            clipped=row.outside / row.values if row.values else None,
        )


def _named(graph: Graph, feed: Feed) -> dict[str, np.ndarray]:
    """The feed by the graph's own names, in order, and its element types."""
    from onnx import helper

    types = {
        value.name: helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        for value in graph.model.graph.input
    }
    names = graph.inputs if not set(graph.inputs) <= set(feed) else tuple(feed)
    return {
        name: array.astype(types[name], copy=False)
        for name, array in zip(names, feed.values(), strict=True)
    }


class _Session:
    """A model, its outputs by the names of float tensors. Optimizations are off: they fuse layers."""

    def __init__(
        self,
        model: ModelProto,
        called: Sequence[str],
        tensors: Sequence[str],
        folder: Path,
        threads: int,
    ) -> None:
        import onnxruntime

        self._inputs = {value.name for value in model.graph.input}
        self._called = dict(zip(tensors, called, strict=True))
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        onnx_format.save(model, folder)
        try:
            self._session: InferenceSession = onnxruntime.InferenceSession(
                str(folder / onnx_format.FILE), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            raise StepError(
                f"ONNX Runtime does not open the network with its layers exposed: {first_line(error)}",
                hint="without graph optimization it lacks some operators; try another opset",
            ) from error
        finally:
            (folder / onnx_format.DATA).unlink(missing_ok=True)

    def run(self, feed: Feed) -> dict[str, np.ndarray]:
        """Float tensors' names to arrays."""
        given = {name: array for name, array in feed.items() if name in self._inputs}
        names = list(dict.fromkeys(x for x in self._called.values() if x not in self._inputs))
        arrays = dict(zip(names, self._session.run(names, given), strict=True))
        return {tensor: arrays.get(x, feed.get(x)) for tensor, x in self._called.items()}  # type: ignore[misc]
