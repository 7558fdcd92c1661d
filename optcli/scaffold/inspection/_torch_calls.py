"""What inspections of torch networks and exported programs share: a call that is watched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from optcli.models.formats.torch_calls import example_inputs, short
from optcli.scaffold.inspection.findings import operations, operators
from optcli.settings import TensorSpec, batched

if TYPE_CHECKING:
    import torch

# What only makes or looks at tensors is no work of the network.
_SILENT = ("detach", "alias", "t", "lift_fresh", "sym_size", "_assert_async", "empty")


def example(inputs: Sequence[TensorSpec]) -> dict[str, torch.Tensor]:
    """Inputs of the smallest batch."""
    smallest = max((spec.batch_range().min for spec in inputs if spec.batch_symbol), default=1)
    return example_inputs(inputs, smallest)


def counted(call: Callable[[], Any], feed: Mapping[str, torch.Tensor]) -> tuple[dict[str, Any], Any]:
    """Call once: operators by type and precision, multiply-accumulates, and what the call gave."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    counts: Counter[tuple[str, str]] = Counter()
    with torch.no_grad(), _plain_attention():
        with FlopCounterMode(display=False) as flops:
            call()
        with _watching(counts):
            result = call()
    at = {name: tuple(value.shape) for name, value in feed.items()}
    # torch counts a multiply-accumulate as two.
    record = operations(flops.get_total_flops() // 2, at)
    return {"operators": operators(counts), "operations": record}, result


def parameters(state: Mapping[str, Any]) -> dict[str, Any]:
    """How many values a state holds, each shared tensor once; whole numbers of 64 bits left out."""
    import torch

    counts: Counter[str] = Counter()
    addresses: set[int] = set()
    for value in state.values():
        if not isinstance(value, torch.Tensor) or value.dtype in (torch.int64, torch.bool):
            continue
        if type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout == torch.strided:
            if value.numel() and value.data_ptr() in addresses:
                continue
            addresses.add(value.data_ptr())
        counts[short_name(value.dtype)] += value.numel()
    return {"parameters": sum(counts.values()), "parameters_by_type": dict(counts)}


def tensors(
    outputs: Mapping[str, torch.Tensor],
    inputs: Sequence[TensorSpec],
    feed: Mapping[str, torch.Tensor],
) -> list[dict[str, Any]]:
    """The outputs as they came; their first size is the batch where the inputs have one."""
    first = batched(inputs)
    batch = None if first is None else first.batch_symbol
    size = None if first is None else feed[first.name].shape[0]
    records = []
    for name, value in outputs.items():
        shape: list[int | str] = list(value.shape)
        if batch and shape and shape[0] == size:
            shape[0] = batch
        records.append({"name": name, "dtype": str(value.dtype).removeprefix("torch."), "shape": shape})
    return records


def short_name(dtype: torch.dtype) -> str:
    """`fp32` for torch.float32, `int8` for torch.int8 and its quantized kin."""
    return short(dtype).removeprefix("q")


@contextmanager
def _watching(seen: Counter[tuple[str, str]]) -> Iterator[None]:
    """Count every operator that is called, by its name and the type of its first result."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(
            self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = operator(*args, **(kwargs or {}))
            first = result[0] if isinstance(result, tuple | list) and result else result
            name = operator.overloadpacket.__name__
            if isinstance(first, torch.Tensor) and name not in _SILENT:
                seen[f"{operator.namespace}.{name}", short_name(first.dtype)] += 1
            return result

    with Watch():
        yield


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Attention in its parts: torch's fused one hides its products from the counter."""
    import torch

    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
