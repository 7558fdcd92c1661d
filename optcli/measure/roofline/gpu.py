"""A GPU's rates, by PyTorch's matrix products on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from optcli.measure.roofline.findings import Rate
from optcli.measure.roofline.timing import RateRequest, product_operations, product_size
from optcli.workers import Channel

_SIDES = (4096, 8192)
_REPETITIONS = 20


class ComputingDevice(Protocol):
    """What computes: gives a call for a product of two square matrices, and its best time."""

    def product(self, side: int, precision: str) -> Callable[[], Any] | None:
        """None where it does not compute in the precision."""

    def best_s(self, call: Callable[[], Any], repetitions: int) -> float:
        """Seconds of the fastest of so many calls."""


def rates(request: RateRequest, channel: Channel) -> list[Rate]:
    """Rates of the first GPU; none where PyTorch sees no GPU."""
    import torch

    if not torch.cuda.is_available():
        return []
    return of(Cuda(), request.threads)


def of(device: ComputingDevice, threads: int) -> list[Rate]:
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
