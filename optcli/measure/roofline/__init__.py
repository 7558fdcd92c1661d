"""The roofline: what this machine can do at most, and how near to it a model comes.

S. Williams, A. Waterman and D. Patterson, Roofline, Communications of the ACM 52 (2009) 65-76. Peaks
are measured through the libraries that also run the artifacts, each in a process of its own; whichever
is fastest counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from optcli import environment, workers
from optcli.errors import OptcliError, RunnerError, counted
from optcli.measure.roofline.findings import (
    PRECISIONS,
    Bandwidth,
    Limit,
    Rate,
    Roofline,
    document,
    limit,
)
from optcli.measure.roofline.timing import RateRequest
from optcli.observer import Observer

# Libraries whose kernels are tried; numpy makes what they are tried on.
PACKAGES = ("torch", "onnx", "onnxruntime", "openvino", "numpy")
STEP = "roofline"
_LIBRARIES = ("torch", "onnxruntime", "openvino")
_SECONDS = 0.2
_TIMEOUT_S = 300.0
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_USUAL_CACHE_BYTES = 32 * 1024**2
_MOST_BYTES = 2 * 1024**3


def measure(logs: Path | None, observer: Observer, *, seconds: float = _SECONDS) -> Roofline:
    """Measure this machine: every library with one core and with all, then memory, then the GPU.

    `seconds` is for each shape in each precision; the whole takes about a minute. A library that is
    not here or fails is left out, with a note. Raises `RunnerError` where none works.
    """
    start = datetime.now(UTC)
    observer.started(STEP)
    cores = environment.usable_cores()
    counts = sorted({1, cores})
    notes: list[str] = []
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > 0.25 * cores:
        notes.append(f"load {load:.1f} on {cores} cores when it was measured: peaks may be too low")
    rates: list[Rate] = []
    bandwidths: list[Bandwidth] = []
    cache = last_level_cache_bytes()
    # Arrays within the caches of a core, within the last one, far beyond it.
    sizes = {256 * 1024, 1024**2, 4 * 1024**2, cache // 2, 4 * cache}
    todo = [*_tasks(counts, seconds, sorted({min(size, _MOST_BYTES) for size in sizes}))]
    for number, (name, function, request) in enumerate(todo):
        observer.progress(STEP, number / len(todo), name)
        log = logs / f"{name.replace(' ', '-')}.log" if logs else None
        threads = str(request.threads)
        settings = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        run = partial(workers.run, log=log, environment=settings, timeout_s=_TIMEOUT_S)
        try:
            if function.endswith(":bandwidths"):
                bandwidths += run(function, request, list[Bandwidth])
            else:
                rates += run(function, request, list[Rate])
        except OptcliError as error:
            notes.append(f"{name}: {error.message}")
            observer.warned(STEP, notes[-1])
    if not any(rate.device == "cpu" for rate in rates):
        raise RunnerError(
            f"no library could be measured: {'; '.join(notes) or 'none is installed'}",
            place=STEP,
            hint="run `optcli doctor`",
        )
    observer.finished(STEP, (datetime.now(UTC) - start).total_seconds())
    return Roofline(
        cores=cores,
        last_level_cache_bytes=cache,
        rates=tuple(rates),
        bandwidths=tuple(bandwidths),
        environment=environment.describe(PACKAGES),
        measured_at=start.astimezone().isoformat(timespec="seconds"),
        notes=tuple(notes),
    )


def _tasks(
    counts: list[int], seconds: float, sets: list[int]
) -> Iterator[tuple[str, str, RateRequest]]:
    """The name, worker function and request of each measurement."""
    for threads in counts:
        request = RateRequest(threads, seconds, tuple(sets))
        cores = counted(threads, "core")
        for library in _LIBRARIES:
            if environment.version(library) is not None:
                yield f"{library} {cores}", f"optcli.measure.roofline.{library}:rates", request
        if environment.version("torch") is not None:
            yield f"memory {cores}", "optcli.measure.roofline.torch:bandwidths", request
    if environment.has_gpu() and environment.version("torch") is not None:
        yield "gpu", "optcli.measure.roofline.torch:gpu_rates", RateRequest(counts[-1], seconds)


def last_level_cache_bytes() -> int:
    """The largest cache of the first core; 32 MiB where the system does not say."""
    sizes = []
    for path in sorted(_CACHES.glob("index*/size")):
        with suppress(OSError, ValueError):
            text = path.read_text().strip()
            unit = {"K": 1024, "M": 1024**2}.get(text[-1:], 1)
            sizes.append(int(text.rstrip("KM")) * unit)
    return max(sizes, default=_USUAL_CACHE_BYTES)
