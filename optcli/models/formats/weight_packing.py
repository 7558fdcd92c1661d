"""Weights of convolutions and linear layers in oneDNN's own order, where the batch size varies.

oneDNN reads weights in blocks. Their order depends on the kernel, and so on the sizes of the input.
Inductor lays constant weights out in that order once, when it compiles. Where a size of the input is
not known it leaves weights in floats as they are, and lays integers out for sizes that it makes up.
oneDNN reorders weights in any other order on every call. `packing` therefore lays them out for one
batch size. At another size oneDNN may want another order, and reordering blocks is far slower than
ordering plain weights: floats for which several orders are wanted stay plain. `packed_each_call` finds
in oneDNN's own log what is still reordered on every call.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from optcli.settings import TensorSpec

if TYPE_CHECKING:
    import torch
    from torch.fx import GraphModule, Node

# Operators that lay integer weights out; their last argument is the shape of the input.
_PREPACK = frozenset({"onednn.qconv_prepack", "onednn.qlinear_prepack"})
_CONVOLUTION = "mkldnn._convolution_pointwise"
_CALLS = 7
# A line of oneDNN's log: what was computed, and its sizes before the milliseconds at the end.
_LINE = re.compile(r"^onednn_verbose,.*,exec,\w+,(?P<what>\w+),.*,(?P<sizes>[^,]*),(?P<ms>[\d.]+)$")


@dataclass
class Packing:
    """How many layers had their weights laid out once and for all, and how many were left."""

    layers: int = 0
    left: int = 0


@dataclass(frozen=True)
class PackedWeights:
    """What a call packs: how many weights, their share of all elements, and of oneDNN's time."""

    weights: int = 0
    share: float = 0.0
    share_of_time: float = 0.0

    def to_record(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "weights": self.weights,
            "share": round(self.share, 4),
            "share_of_time": round(self.share_of_time, 4),
        }


@contextmanager
def packing(inputs: Sequence[TensorSpec], batch_sizes: Sequence[int]) -> Iterator[Packing]:
    """Whatever Inductor freezes in the block has its weights laid out for the first of the batch sizes.

    Floats only where all of the sizes want the same order. `inputs` are those of the graph; every
    other size that varies is taken at its `opt`. Graphs of known sizes stay as they are.
    """
    from torch._inductor import freezing

    counts = Packing()
    plain = freezing.freezing_passes

    def passes(module: GraphModule, examples: Sequence[Any]) -> None:
        plain(module, examples)
        _pack(module, [_sizes(examples, inputs, size) for size in batch_sizes], counts)

    freezing.freezing_passes = passes
    try:
        yield counts
    finally:
        freezing.freezing_passes = plain


def _sizes(examples: Sequence[Any], inputs: Sequence[TensorSpec], batch_size: int) -> dict[Any, int]:
    """What to take for each symbol of the graph's inputs."""
    import torch

    sizes: dict[Any, int] = {}
    tensors = [each for each in examples if isinstance(each, torch.Tensor)]
    for spec, tensor in zip(inputs, tensors, strict=False):
        for size, concrete in zip(tensor.shape, spec.concrete(batch_size), strict=True):
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                sizes[size.node.expr] = concrete
    return sizes


def _pack(module: GraphModule, choices: Sequence[dict[Any, int]], counts: Packing) -> None:
    """`choices` has what to take for each symbol, once for every batch size."""
    for node in list(module.graph.nodes):
        name = str(node.target).removesuffix(".default")
        if node.op != "call_function":
            continue
        if name in _PREPACK and node.args[-1] is None:
            reader: Node = next(iter(node.users))
            shape = _shape(reader.args[0], choices[0])
            if shape is not None:
                node.args = (*node.args[:-1], shape)
            done = shape is not None
        elif name == _CONVOLUTION and _varies(node.args[0]) and node.args[1].op == "get_attr":
            done = _pack_convolution(module, node, choices)
        else:
            continue
        counts.layers += done
        counts.left += not done
    module.recompile()


def _shape(node: Node, sizes: dict[Any, int]) -> list[int] | None:
    """The shape of what a node gives, in numbers; None where it is not known."""
    value = node.meta.get("val")
    if value is None:
        return None
    shape = [_number(size, sizes) for size in value.shape]
    return None if None in shape else [int(size) for size in shape if size is not None]


def _number(size: Any, sizes: dict[Any, int]) -> int | None:
    value = size if isinstance(size, int) else size.node.expr.subs(sizes)
    return int(value) if isinstance(value, int) or value.is_Integer else None


def _varies(node: Node) -> bool:
    """Whether a size of what a node gives is not known: Inductor has laid out the rest."""
    value = node.meta.get("val")
    return value is None or not all(isinstance(size, int) for size in value.shape)


def _told_apart(source: Node, convolution: Node) -> bool:
    """Whether an image with its channels last can be told from one with them first.

    Where it cannot (one channel, or one pixel), Inductor expects of a kernel with packed weights an
    order that it does not write.
    """
    channels, *pixels = source.meta["val"].shape[1:]
    written = convolution.meta["val"].shape[2:]
    return channels != 1 and not (_is_one(pixels) and not _is_one(written))


def _is_one(pixels: Sequence[Any]) -> bool:
    return all(isinstance(size, int) and size == 1 for size in pixels)


def _pack_convolution(module: GraphModule, node: Node, choices: Sequence[dict[Any, int]]) -> bool:
    """As Inductor does where all sizes are known (`pack_conv_weight` of its mkldnn_fusion)."""
    import torch

    shapes = [_shape(node.args[0], sizes) for sizes in choices]
    weight, constants = node.args[1], node.args[3:7]
    if None in shapes or not _told_apart(node.args[0], node):
        return False
    values = attrgetter(weight.target)(module)
    if len({_order(values, constants, shape) for shape in shapes}) > 1:
        return False
    with module.graph.inserting_before(node):
        packed = module.graph.call_function(
            torch.ops.mkldnn._reorder_convolution_weight, args=(weight, *constants, shapes[0])
        )
    node.replace_input_with(weight, packed)
    return True


def _order(weight: torch.Tensor, constants: Sequence[Any], shape: Any) -> tuple[int, ...]:
    """The order that oneDNN wants of a weight for an input of a shape, as it writes it down itself."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        packed = torch.ops.mkldnn._reorder_convolution_weight(weight, *constants, shape)
        return tuple(torch.ops.mkldnn._get_mkldnn_serialized_md(packed).tolist())


def packed_each_call(call: Callable[[], object], weights: Iterable[object]) -> PackedWeights | None:
    """What oneDNN brings into its order of a network's weights during one call.

    `weights` are the tensors that the network keeps; what else it keeps is left out.

    By its own log, which goes to this process's standard output and is caught there; the share of the
    time is the middle one of a few calls. None where oneDNN computes nothing of it.
    """
    call()  # the first call also does what is done only once
    shapes = list(_shapes_of(weights))
    packs = [_packed(lines, shapes) for lines in (_log_of(call) for _ in range(_CALLS)) if lines]
    return sorted(packs, key=lambda each: each.share_of_time)[len(packs) // 2] if packs else None


def _packed(lines: Sequence[str], weights: Sequence[tuple[int, ...]]) -> PackedWeights:
    shapes = {_sides(each) for each in weights}
    all_ms, packed_ms, count, elements = 0.0, 0.0, 0, 0
    for line in filter(None, map(_LINE.match, lines)):
        all_ms += float(line["ms"])
        if line["what"] != "reorder":
            continue
        sides = [int(size) for size in line["sizes"].split("x")]
        if _is_one_of(sides, shapes):
            packed_ms += float(line["ms"])
            elements += math.prod(sides)
            count += 1
    total = max(1, sum(map(math.prod, weights)))
    return PackedWeights(count, elements / total, packed_ms / all_ms if all_ms else 0.0)


def _is_one_of(sides: Sequence[int], shapes: set[tuple[int, ...]]) -> bool:
    """Whether these are the sizes of a weight; of groups they stand in front by themselves."""
    joined = [sides[0] * sides[1], *sides[2:]] if len(sides) > 4 else sides
    return _sides(sides) in shapes or _sides(joined) in shapes


def _sides(shape: Sequence[int]) -> tuple[int, ...]:
    """Sizes of whatever order: linear layers are turned over, and sizes of 1 come and go."""
    return tuple(sorted(size for size in shape if size > 1))


def _shapes_of(weights: Iterable[object]) -> Iterator[tuple[int, ...]]:
    import torch

    for value in weights:
        if isinstance(value, torch.Tensor) and value.ndim > 1 and math.prod(value.shape) > 1:
            yield tuple(value.shape)


def _log_of(call: Callable[[], object]) -> list[str]:
    """What oneDNN says of a call, line by line."""
    import torch

    flush = ctypes.CDLL(None).fflush
    with tempfile.TemporaryFile() as log:
        sys.stdout.flush()
        flush(None)
        before = os.dup(1)
        os.dup2(log.fileno(), 1)
        try:
            with torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
                call()
        finally:
            flush(None)
            os.dup2(before, 1)
            os.close(before)
        log.seek(0)
        text = log.read().decode(errors="replace")
    return [
        line for line in text.splitlines() if line.startswith("onednn_verbose") and ",exec," in line
    ]
