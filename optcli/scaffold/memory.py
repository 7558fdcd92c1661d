"""How large a batch a first recipe may ask for: by the bytes of inputs and of what layers give."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from optcli.models.onnx_graphs.protobuf import element_name, inferred
from optcli.settings import TensorSpec

MOST_INPUT_BYTES = 20e6  # 32 images of 3 x 224 x 224 in float32
MOST_ACTIVATION_BYTES = 1e9
_AT_ONCE = 3  # tensors of the largest size that live together: what a layer reads, writes and skips


def fitted(inputs: Sequence[TensorSpec], largest_bytes: int) -> list[TensorSpec]:
    """The inputs with a batch that memory holds; those whose batch is fixed stay as they are.

    `largest_bytes` is the largest tensor inside of the network for one sample.
    """
    sample_bytes = sum(input_bytes(spec) for spec in inputs)
    by_inputs = MOST_INPUT_BYTES / max(1, sample_bytes)
    by_layers = MOST_ACTIVATION_BYTES / max(1, _AT_ONCE * largest_bytes)
    most = 2 ** int(math.log2(max(1.0, min(by_inputs, by_layers))))
    return [_narrowed(spec, most) for spec in inputs]


def input_bytes(spec: TensorSpec) -> int:
    """Bytes of one sample of an input; sizes that vary count with their usual value."""
    sizes = [spec.ranges[size].opt if isinstance(size, str) else size for size in spec.shape]
    return math.prod(sizes[1:]) * _item_bytes(spec.dtype)


def _item_bytes(dtype: str) -> int:
    """Bytes of one value: by the bits in the name of the type, `float32` or `bfloat16`; else 1."""
    bits = re.search(r"\d+$", dtype)
    return max(1, int(bits[0]) // 8) if bits else 1


def _narrowed(spec: TensorSpec, most: int) -> TensorSpec:
    symbol = spec.batch_symbol
    if symbol is None:
        return spec
    span = spec.ranges[symbol]
    high = max(span.min, min(span.max, most))
    narrower = span.model_copy(update={"opt": min(span.opt, high), "max": high})
    return spec.model_copy(update={"ranges": {**spec.ranges, symbol: narrower}})


def of_call(call: Callable[[], Any], batch_size: int) -> int:
    """Bytes, for one sample, of the largest tensor that a call of PyTorch makes; 0 where unknown."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    largest = 0

    class Watching(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            # Views, of weights above all, take no memory of their own.
            if all(each.alias_info is None for each in func._schema.returns):
                for value in tree_leaves(result):
                    if isinstance(value, torch.Tensor):
                        largest = max(largest, value.numel() * value.element_size())
            return result

    try:
        with torch.no_grad(), Watching():
            call()
    except Exception:  # an estimate is no reason to fail: the model itself was called before
        return 0
    return largest // max(1, batch_size)


def of_onnx(path: Path, inputs: Sequence[TensorSpec]) -> int:
    """Bytes, for one sample, of the largest tensor that an ONNX file computes; 0 where unknown."""
    import onnx

    sizes = {spec.name: spec.concrete(spec.batch_range().min) for spec in inputs}
    batch = max((spec.batch_range().min for spec in inputs), default=1)
    try:
        model = onnx.load(str(path), load_external_data=False)
        for value in model.graph.input:
            dims = value.type.tensor_type.shape.dim
            for dim, size in zip(dims, sizes.get(value.name, ()), strict=False):
                dim.dim_value = size
        shapes, types = inferred(model)
    except Exception:  # as above
        return 0
    outside = {value.name for value in (*model.graph.input, *model.graph.initializer)}
    inner = {name: shape for name, shape in shapes.items() if name not in outside}
    sizes_bytes = (
        math.prod(shape) * _item_bytes(element_name(types[name])) for name, shape in inner.items()
    )
    return max(sizes_bytes, default=0) // max(1, batch)
