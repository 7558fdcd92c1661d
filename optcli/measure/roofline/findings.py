"""What this machine can do at most, and how near to that a model can come.

Rates of arithmetic are by precision, those of memory by size. The limit of a computation with
`operations` that moves `bytes` is min(peak of its precision, bandwidth * operations / bytes). Bytes are
the least that must move: every weight once, inputs and outputs once. What passes between layers may
stay in a cache and is left out, so that the limit is never set too low; nor does bandwidth stand for
memory where all of it fits into a cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field

from optcli.errors import counted
from optcli.results.document import Document, Items, Section, table_of_texts
from optcli.results.outcomes import Result

Operation = Literal["matmul", "convolution"]
PRECISIONS = ("fp32", "bf16", "fp16", "int8")


class Rate(Result):
    """The best that one library reached: operations a second, a multiply-accumulate being two.

    `size` is what was computed, such as `512 x 512 x 512`.
    """

    precision: str
    operation: Operation
    library: str
    threads: int
    size: str
    per_s: float
    device: Literal["cpu", "gpu"] = "cpu"


class Bandwidth(Result):
    """Bytes a second to and from arrays of together `working_set_bytes`.

    `read_per_s` is the best of a sum and a scalar product, `triad_per_s` of a = b + s * c, counted as
    two reads and one write (J. D. McCalpin, STREAM, 1995).
    """

    working_set_bytes: int
    threads: int
    read_per_s: float
    triad_per_s: float


class Roofline(Result):
    """All rates that were measured on this machine; the fastest of each kind is its peak."""

    schema_version: Literal[1] = Field(1, alias="schema")
    cores: int
    last_level_cache_bytes: int
    rates: tuple[Rate, ...]
    bandwidths: tuple[Bandwidth, ...]
    environment: dict[str, Any]
    measured_at: str
    notes: tuple[str, ...] = ()

    def peak(
        self,
        precision: str,
        threads: int | None = None,
        operation: Operation | None = None,
        device: str = "cpu",
    ) -> Rate | None:
        """The fastest rate in a precision, of matrix products or convolutions (None: of either).

        With as many threads as were measured; None where this machine does not compute in it.
        """
        rates = [
            rate
            for rate in self.rates
            if (rate.precision, rate.device) == (precision, device)
            and operation in (None, rate.operation)
            and threads in (None, rate.threads)
        ]
        return max(rates, key=lambda rate: rate.per_s, default=None)

    def operations_per_s(self, precision: str, threads: int) -> float | None:
        """The most operations a second with so many threads.

        Between one and all cores, which were measured, no more than all do, nor than so many times
        one. None where this machine does not compute in the precision.
        """
        one_core, all_cores = self.peak(precision, 1), self.peak(precision, self.cores)
        if one_core is None or all_cores is None:
            return None
        return min(max(one_core.per_s, all_cores.per_s), threads * one_core.per_s)

    def bytes_per_s(self, working_set_bytes: float, threads: int) -> float | None:
        """The most bytes a second of a working set: what the largest one measured within it reaches.

        A larger set cannot be faster, so that what a larger one reached counts as well.
        """
        sizes = sorted({each.working_set_bytes for each in self.bandwidths})
        if not sizes:
            return None
        base = max((size for size in sizes if size <= working_set_bytes), default=sizes[0])
        at = {count: self._bandwidth(base, count) for count in (1, self.cores)}
        return min(max(at.values()), threads * at[1])

    def _bandwidth(self, least_bytes: int, threads: int) -> float:
        rates = [
            max(each.read_per_s, each.triad_per_s)
            for each in self.bandwidths
            if each.working_set_bytes >= least_bytes and each.threads == threads
        ]
        return max(rates, default=0.0)


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


_OPERATIONS: tuple[tuple[Operation, str], ...] = (
    ("matmul", "matrix products"),
    ("convolution", "convolutions"),
)


def document(machine: Roofline) -> Document:
    """Peaks by precision with one core and with all, memory by size, and which library was fastest."""
    cpu = machine.environment.get("cpu", {}).get("model", "this machine")
    counts = sorted({1, machine.cores})
    cores = [_cores(count) for count in counts]
    speeds = []
    for size in sorted({each.working_set_bytes for each in machine.bandwidths}):
        at = {each.threads: each for each in machine.bandwidths if each.working_set_bytes == size}
        speeds.append((f"arrays of {_size(size)}", *(_speeds(at.get(count)) for count in counts)))
    return Document(
        title=f"{cpu}, {_cores(machine.cores)}, measured {machine.measured_at}",
        sections=[
            Section(
                "Arithmetic, 10^9 operations/s",
                [
                    table_of_texts(
                        ("peak", *cores, "fastest"), _peaks(machine, counts), (0, 1 + len(counts))
                    )
                ],
            ),
            Section("Memory, 10^9 bytes/s (read, triad)", [table_of_texts(("memory", *cores), speeds)]),
            Section("Notes", [Items(machine.notes)]),
        ],
        footer=[
            "A multiply-accumulate is two operations; the last cache holds"
            f" {_size(machine.last_level_cache_bytes)}."
        ],
    )


def _peaks(machine: Roofline, counts: list[int]) -> Iterator[tuple[str, ...]]:
    for precision in PRECISIONS:
        for operation, name in _OPERATIONS:
            peaks = [machine.peak(precision, count, operation) for count in counts]
            if any(peaks):
                fastest = dict.fromkeys(f"{rate.library} {rate.size}" for rate in peaks if rate)
                yield f"{precision} {name}", *map(_rate, peaks), ", ".join(fastest)
    for precision in dict.fromkeys(rate.precision for rate in machine.rates if rate.device == "gpu"):
        if rate := machine.peak(precision, device="gpu"):
            empty = [""] * (len(counts) - 1)
            yield f"{precision} on the GPU", *empty, _rate(rate), rate.library


def _rate(rate: Rate | None) -> str:
    return "" if rate is None else f"{rate.per_s / 1e9:.0f}"


def _cores(count: int) -> str:
    return counted(count, "core")


def _size(size_bytes: int) -> str:
    kib = size_bytes // 1024
    return f"{kib} KiB" if kib < 1024 else f"{kib // 1024} MiB"


def _speeds(bandwidth: Bandwidth | None) -> str:
    if bandwidth is None:
        return ""
    return f"{bandwidth.read_per_s / 1e9:.1f}, {bandwidth.triad_per_s / 1e9:.1f}"
