"""The roofline to be read."""

from __future__ import annotations

from collections.abc import Iterator

from optcli.errors import counted
from optcli.measure.roofline.findings import PRECISIONS, Bandwidth, Operation, Rate, Roofline
from optcli.results.document import Document, Items, Section, table_of_texts

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
