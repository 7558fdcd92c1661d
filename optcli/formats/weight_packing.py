"""Weights of convolutions and linear layers in oneDNN's own order, where the batch size varies.

oneDNN reads weights in blocks whose order depends on the kernel, and so on the sizes of the input.
Inductor lays constant weights out like that once, when it compiles: but where a size of the input is
not known it lets weights of floats be, and lays integers out for sizes that it makes up. What is not
in the wanted order oneDNN brings there on every call. So `packing` has them laid out for one batch
size. At another size oneDNN may want another order: `packed_each_call` counts, from its own log.
"""

from __future__ import annotations

import ctypes
import math
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optcli.settings import TensorSpec

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node

# Operators that lay integer weights out, and are told the shape of the input last.
_PREPACK = frozenset({"onednn.qconv_prepack", "onednn.qlinear_prepack"})
_CONVOLUTION = "mkldnn._convolution_pointwise"
# A line of oneDNN's log: what was computed, and its sizes before the milliseconds at the end.
_REORDER = re.compile(r"^onednn_verbose,.*\bexec\b.*,reorder,.*,(?P<sizes>\d+(?:x\d+)*),[^,]*$")


@dataclass
class Packing:
    """How many layers had their weights laid out for `batch_size`, and how many could not.

    None: for the batch that it was compiled with.
    """

    batch_size: int | None = None
    layers: int = 0
    left: int = 0


@contextmanager
def packing(inputs: Sequence[TensorSpec] = (), batch_size: int | None = None) -> Iterator[Packing]:
    """Whatever Inductor freezes in the block has its weights laid out for a batch size.

    Every other size that varies is taken at its `opt`. Without `inputs`, which are those of the graph,
    sizes are taken as they are when it compiles. Graphs of known sizes stay as they are.
    """
    from torch._inductor import freezing

    found = Packing(batch_size)
    plain = freezing.freezing_passes

    def passes(module: GraphModule, examples: Sequence[Any]) -> None:
        plain(module, examples)
        _pack(module, _sizes(examples, inputs, batch_size), found)

    freezing.freezing_passes = passes
    try:
        yield found
    finally:
        freezing.freezing_passes = plain


def _sizes(
    examples: Sequence[Any], inputs: Sequence[TensorSpec], batch_size: int | None
) -> dict[Any, int]:
    """What to take for each symbol of the graph's inputs; nothing: what it is there and then."""
    import torch

    found: dict[Any, int] = {}
    if batch_size is None:
        return found
    tensors = [each for each in examples if isinstance(each, torch.Tensor)]
    for spec, tensor in zip(inputs, tensors, strict=False):
        for size, wanted in zip(tensor.shape, spec.concrete(batch_size), strict=True):
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                found[size.node.expr] = wanted
    return found


def _pack(module: GraphModule, sizes: dict[Any, int], found: Packing) -> None:
    for node in list(module.graph.nodes):
        name = str(node.target).removesuffix(".default")
        if node.op != "call_function":
            continue
        if name in _PREPACK and node.args[-1] is None:
            shape = _shape(_reader(node).args[0], sizes)
            if shape is not None:
                node.args = (*node.args[:-1], shape)
        elif name == _CONVOLUTION and _varies(node.args[0]) and node.args[1].op == "get_attr":
            shape = _shape(node.args[0], sizes)
            if shape is not None and _told_apart(node.args[0], node):
                _pack_convolution(module, node, shape)
            else:
                shape = None
        else:
            continue
        found.layers += shape is not None
        found.left += shape is None
    module.recompile()


def _reader(prepack: Node) -> Node:
    reader: Node = next(iter(prepack.users))
    return reader


def _shape(node: Node, sizes: dict[Any, int]) -> list[int] | None:
    """The shape of what a node gives, in numbers; None where it is not known."""
    value = node.meta.get("val")
    if value is None:
        return None
    shape = [_number(size, sizes) for size in value.shape]
    return None if None in shape else [int(size) for size in shape if size is not None]


def _number(size: Any, sizes: dict[Any, int]) -> int | None:
    if isinstance(size, int):
        return size
    found = size.node.expr.subs(sizes)
    if found.is_Integer:
        return int(found)
    hint = size.node.hint
    return None if hint is None else int(hint)


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


def _pack_convolution(module: GraphModule, node: Node, shape: list[int]) -> None:
    """As Inductor does where all sizes are known (`pack_conv_weight` of its mkldnn_fusion)."""
    import torch

    weight, constants = node.args[1], node.args[3:7]
    with module.graph.inserting_before(node):
        packed = module.graph.call_function(
            torch.ops.mkldnn._reorder_convolution_weight, args=(weight, *constants, shape)
        )
    node.replace_input_with(weight, packed)


def packed_each_call(call: Callable[[], object], program: ExportedProgram) -> int | None:
    """How many weights of the program oneDNN brings into its order during one call.

    By its own log, which goes to this process's standard output and is caught there. None where
    oneDNN computes nothing of it.
    """
    call()  # what is done once is done
    lines = _log_of(call)
    if not lines:
        return None
    shapes = {_sides(each) for each in _weights(program)}
    sizes = (_REORDER.match(line) for line in lines)
    return sum(_is_one_of(each["sizes"], shapes) for each in sizes if each is not None)


def _is_one_of(sizes: str, shapes: set[tuple[int, ...]]) -> bool:
    """Whether these are the sizes of a weight; of groups they stand in front by themselves."""
    sides = [int(size) for size in sizes.split("x")]
    joined = [sides[0] * sides[1], *sides[2:]] if len(sides) > 4 else sides
    return _sides(sides) in shapes or _sides(joined) in shapes


def _sides(shape: Sequence[int]) -> tuple[int, ...]:
    """Sizes of whatever order: linear layers are turned over, and sizes of 1 come and go."""
    return tuple(sorted(size for size in shape if size > 1))


def _weights(program: ExportedProgram) -> Iterator[tuple[int, ...]]:
    import torch

    for value in (*program.state_dict.values(), *program.constants.values()):
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
