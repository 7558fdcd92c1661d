"""How near to the machine's limit a model comes.

The limit of a computation with `operations` that moves `bytes` is min(peak of its precision,
bandwidth * operations / bytes). Bytes are the least that must move: every weight once, inputs and
outputs once. What passes between layers may stay in a cache and is left out, so that the limit is
never set too low; nor does bandwidth stand for memory where all of it fits into a cache.
"""

from __future__ import annotations

from typing import Literal

from optcli.results.outcomes import Result
from optcli.roofline.findings import Roofline


class Limit(Result):
    """What bounds a call, and the operations a second that the bound allows."""

    per_s: float
    precision: str
    bound: Literal["compute", "memory"]


def limit(
    machine: Roofline, precision: str, threads: int, operations: float, moved_bytes: float
) -> Limit | None:
    """The roof over a call; None where the machine was not measured for it."""
    used = computed_in(precision)
    peak = machine.operations_per_s(used, threads)
    bandwidth = machine.bytes_per_s(moved_bytes, threads)
    if peak is None:  # the CPU has no instructions for it: it is computed in fp32
        used, peak = "fp32", machine.operations_per_s("fp32", threads)
    if peak is None or bandwidth is None or not moved_bytes:
        return None
    by_memory = bandwidth * operations / moved_bytes
    bound: Literal["compute", "memory"] = "compute" if peak <= by_memory else "memory"
    return Limit(per_s=min(peak, by_memory), precision=used, bound=bound)


def computed_in(precision: str) -> str:
    """The type that arithmetic happens in: `int8-dynamic` in int8, `int8-weights` in fp32."""
    if precision.endswith("-weights"):
        return "fp32"
    return precision.partition("-")[0].partition(" ")[0]
