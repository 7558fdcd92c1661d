"""PyTorch's rates: its matrix products (MKL, oneDNN), its convolutions, memory, and a GPU's."""

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


_SIDES = (4096, 8192)
_REPETITIONS = 20


def gpu_rates(request: RateRequest, channel: Channel) -> list[Rate]:
    """Rates of the first GPU; none where PyTorch sees no GPU."""
    import torch

    if not torch.cuda.is_available():
        return []
    return rates_of_device(Cuda(), request.threads)


def rates_of_device(device: Cuda, threads: int) -> list[Rate]:
    """The rates of a device; `threads` are those of the process that drives it."""
    fastest = []
    for precision in ("fp32", "tf32", "bf16", "fp16", "int8"):
        for side in _SIDES:
            call = device.product(side, precision)
            if call is None:
                continue
            fastest.append(
                Rate(
                    precision=precision,
                    operation="matmul",
                    library="torch",
                    threads=threads,
                    size=product_size(side),
                    per_s=product_operations(side) / device.best_s(call, _REPETITIONS),
                    device="gpu",
                )
            )
    return fastest


class Cuda:
    """The current CUDA device."""

    def product(self, side: int, precision: str) -> Callable[[], Any] | None:
        """A call for a product of two square matrices; None: it does not compute in the precision."""
        import torch

        torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        if precision == "int8":
            first, second = (
                torch.randint(-100, 100, (side, side), dtype=torch.int8, device="cuda")
                for _ in range(2)
            )
            # The second factor by columns, as cuBLAS wants integers: by rows an H100 gave 128 TOP/s.
            return lambda: torch._int_mm(first, second.t())
        types = {"bf16": torch.bfloat16, "fp16": torch.float16}
        if precision == "bf16" and not torch.cuda.is_bf16_supported():
            return None
        dtype = types.get(precision, torch.float32)
        first, second = (torch.rand(side, side, device="cuda", dtype=dtype) for _ in range(2))
        return lambda: torch.mm(first, second)

    def best_s(self, call: Callable[[], Any], repetitions: int) -> float:
        """Seconds of the fastest of so many calls."""
        import torch

        for _ in range(3):
            call()
        times: list[float] = []
        for _ in range(repetitions):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call()
            stop.record()
            stop.synchronize()
            times.append(float(start.elapsed_time(stop)) / 1e3)
        return min(times)
