"""The roofline as text."""

from __future__ import annotations

from collections.abc import Iterator

from optcli.roofline.findings import PRECISIONS, Bandwidth, Operation, Rate, Roofline

_OPERATIONS: tuple[tuple[Operation, str], ...] = (
    ("matmul", "matrix products"),
    ("convolution", "convolutions"),
)


def lines(machine: Roofline) -> Iterator[str]:
    """Peaks by precision with one core and with all, memory by size, and which library was fastest."""
    cpu = machine.environment.get("cpu", {}).get("model", "this machine")
    yield f"{cpu}, {_cores(machine.cores)}, measured {machine.measured_at}"
    yield ""
    counts = sorted({1, machine.cores})
    yield _row("10^9 operations/s", [_cores(count) for count in counts], "fastest")
    for precision in PRECISIONS:
        for operation, name in _OPERATIONS:
            peaks = [machine.peak(precision, count, operation) for count in counts]
            if any(peaks):
                fastest = dict.fromkeys(f"{rate.library} {rate.size}" for rate in peaks if rate)
                yield _row(f"{precision} {name}", [_rate(each) for each in peaks], ", ".join(fastest))
    for precision in dict.fromkeys(rate.precision for rate in machine.rates if rate.device == "gpu"):
        if rate := machine.peak(precision, device="gpu"):
            yield _row(f"{precision} on the GPU", ["", _rate(rate)][-len(counts) :], rate.library)
    yield ""
    yield _row("10^9 bytes/s (read, triad)", [_cores(count) for count in counts], "")
    for size in sorted({each.working_set_bytes for each in machine.bandwidths}):
        at = {each.threads: each for each in machine.bandwidths if each.working_set_bytes == size}
        yield _row(f"arrays of {_size(size)}", [_speeds(at.get(count)) for count in counts], "")
    cache = f"the last cache holds {_size(machine.last_level_cache_bytes)}"
    yield from ("", f"A multiply-accumulate is two operations; {cache}.")
    yield from machine.notes


def _row(name: str, cells: list[str], last: str) -> str:
    return f"{name:<27}{''.join(cell.rjust(16) for cell in cells)}  {last}".rstrip()


def _rate(rate: Rate | None) -> str:
    return "" if rate is None else f"{rate.per_s / 1e9:.0f}"


def _cores(count: int) -> str:
    return f"{count} core" + ("s" if count > 1 else "")


def _size(size_bytes: int) -> str:
    kib = size_bytes // 1024
    return f"{kib} KiB" if kib < 1024 else f"{kib // 1024} MiB"


def _speeds(bandwidth: Bandwidth | None) -> str:
    if bandwidth is None:
        return ""
    return f"{bandwidth.read_per_s / 1e9:.1f}, {bandwidth.triad_per_s / 1e9:.1f}"
