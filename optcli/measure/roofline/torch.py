"""PyTorch's rates: its matrix products (MKL, oneDNN), its convolutions, and memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from optcli.environment import computes_in
from optcli.measure.roofline.findings import Bandwidth, Operation, Rate
from optcli.measure.roofline.timing import (
    CONVOLUTIONS,
    MATRICES,
    RateRequest,
    best_s,
    product_operations,
    product_size,
)
from optcli.workers import Channel


def rates(request: RateRequest, channel: Channel) -> list[Rate]:
    """Matrix products and convolutions, each for as long as the request says."""
    import torch

    torch.set_num_threads(request.threads)
    fastest: list[Rate] = []

    def add(
        precision: str, operation: Operation, size: str, operations: int, call: Callable[[], Any]
    ) -> None:
        per_s = operations / best_s(call, request.seconds)
        fastest.append(request.rate("torch", precision, operation, size, per_s))

    with torch.inference_mode():
        # 8-bit integers are always computed in, if slowly.
        types = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
        usable = {name: dtype for name, dtype in types.items() if name == "fp32" or computes_in(name)}
        for precision, dtype in {**usable, "int8": torch.int8}.items():
            for side in MATRICES:
                size, operations = product_size(side), product_operations(side)
                add(precision, "matmul", size, operations, _product(side, dtype))
            for layer in CONVOLUTIONS if dtype.is_floating_point else ():
                network = torch.nn.Conv2d(layer.channels, layer.channels, 3, padding=1, bias=False)
                network = network.to(dtype, memory_format=torch.channels_last)
                image = torch.rand(layer.batch, layer.channels, layer.side, layer.side).to(dtype)
                image = image.contiguous(memory_format=torch.channels_last)
                run = _call(network, image)
                add(precision, "convolution", layer.size, layer.operations, run)
    return fastest


def bandwidths(request: RateRequest, channel: Channel) -> list[Bandwidth]:
    """Bandwidth at each working set of the request."""
    import torch

    threads, seconds = request.threads, request.seconds
    torch.set_num_threads(threads)
    with torch.inference_mode():
        return [_bandwidth(size, threads, seconds) for size in request.working_sets_bytes]


def _bandwidth(working_set_bytes: int, threads: int, seconds: float) -> Bandwidth:
    import torch

    whole = torch.rand(working_set_bytes // 4)
    half, other = torch.rand(whole.numel() // 2), torch.rand(whole.numel() // 2)
    third = whole.numel() // 3
    a, b, c = torch.empty(third), torch.rand(third), torch.rand(third)

    def triad() -> Any:
        return torch.add(b, c, alpha=2.0, out=a)

    read = max(
        whole.numel() * 4 / best_s(whole.sum, seconds),
        half.numel() * 8 / best_s(_call(torch.dot, half, other), seconds),
    )
    return Bandwidth(
        working_set_bytes=working_set_bytes,
        threads=threads,
        read_per_s=read,
        triad_per_s=third * 12 / best_s(triad, seconds),
    )


def _product(side: int, dtype: Any) -> Callable[[], Any]:
    import torch

    if dtype == torch.int8:
        first, second = (torch.randint(-100, 100, (side, side), dtype=dtype) for _ in range(2))
        return _call(torch._int_mm, first, second)
    first, second = (torch.rand(side, side).to(dtype) for _ in range(2))
    output = torch.empty(side, side, dtype=dtype)
    return lambda: torch.mm(first, second, out=output)


def _call(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    return lambda: function(*arguments)
