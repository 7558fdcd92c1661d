"""What a measuring process does: open one artifact, then time calls whenever it is told to.

The parent speaks first; every command has one answer:

    {"do": "open"}                                            -> how it was opened
    {"do": "warm", "batch_size": B, "calls": N, "seconds": S} -> the first call and the usual one
    {"do": "round", "batch_size": B, "calls": N, "lead_in": L} -> every call's time, and the noise
    {"do": "memory"}                                          -> the most memory held so far
"""

from __future__ import annotations

import gc
import importlib
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli import runners
from optcli.artifact import Artifact
from optcli.errors import RunnerError
from optcli.latency import feeds, memory
from optcli.settings import TensorSpec
from optcli.workers import Channel

if TYPE_CHECKING:
    from optcli.latency.feeds import Feed
    from optcli.runners import Runner


def serve(payload: dict[str, Any], channel: Channel) -> None:
    """Carry out the parent's commands until it is done. `payload`: see `optcli.latency.measure`."""
    process = _Process(payload)
    try:
        while (command := channel.receive()) is not None and command["do"] != "end":
            channel.send(process.answer(command))
    finally:
        process.close()


class _Process:
    def __init__(self, payload: dict[str, Any]) -> None:
        self._artifact = Artifact.from_record(payload["artifact"])
        self._inputs = tuple(TensorSpec.model_validate(spec) for spec in payload["inputs"])
        self._runner: Runner = runners.find(payload["runner"]).model_validate(payload["options"])
        samples = Path(payload["feeds"]) if payload["feeds"] else None
        self._feeds = feeds.make(self._inputs, samples, payload["batch_sizes"], payload["seed"])
        self._turn = count()

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        what = command["do"]
        if what == "open":
            return self._open()
        if what == "warm":
            return self._warm(command["batch_size"], command["calls"], command["seconds"])
        if what == "round":
            return self._round(command["batch_size"], command["calls"], command["lead_in"])
        return {"peak_memory_bytes": max(0, memory.high_water_bytes() - self._empty_bytes)}

    def close(self) -> None:
        self._runner.close()

    def _open(self) -> dict[str, Any]:
        # An empty worker has its inputs, but neither a runtime nor a model.
        self._empty_bytes = memory.mark_bytes()
        start = time.perf_counter_ns()
        for package in self._runner.needs.packages:
            importlib.import_module(package)
        imported = time.perf_counter_ns()
        self._runner.open(self._artifact, self._inputs)
        loaded = time.perf_counter_ns()
        effective = self._runner.effective()
        return {
            "import_ms": (imported - start) / 1e6,
            "load_ms": (loaded - imported) / 1e6,
            "effective": effective,
            "threads": effective.get("threads") or self._runner.thread_count(),
        }

    def _warm(self, batch_size: int, calls: int, seconds: float) -> dict[str, Any]:
        """Call until `calls` or `seconds` are reached; `usual_ns` is the median of the later half."""
        deadline = time.perf_counter_ns() + seconds * 1e9
        times = [self._call(self._feeds[batch_size])]
        while len(times) < calls and time.perf_counter_ns() < deadline:
            times.append(self._call(self._feeds[batch_size]))
        later = sorted(times[len(times) // 2 :])
        return {"first_ms": times[0] / 1e6, "calls": len(times), "usual_ns": later[len(later) // 2]}

    def _round(self, batch_size: int, calls: int, lead_in: int) -> dict[str, Any]:
        """Time calls one by one, after some untimed ones that bring the model back into the caches."""
        batches = self._feeds[batch_size]
        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            for _ in range(lead_in):
                self._call(batches)
            noise = _Noise()
            cpu = time.process_time_ns()
            times = [self._call(batches) for _ in range(calls)]
            cpu = time.process_time_ns() - cpu
            return {"ns": times, "cpu_ns": cpu, **noise.since()}
        finally:
            gc.enable()
            gc.unfreeze()

    def _call(self, batches: list[Feed]) -> int:
        """Nanoseconds of one call: inputs copied in, computed, outputs copied out."""
        feed = batches[next(self._turn) % len(batches)]
        runner = self._runner
        start = time.perf_counter_ns()
        runner.bind(feed)
        runner.execute()
        outputs = runner.fetch()
        stop = time.perf_counter_ns()
        if not outputs:
            raise RunnerError("the model gave no output")
        return stop - start


class _Noise:
    """What disturbed this process or this machine since the object was made."""

    def __init__(self) -> None:
        self._switches, self._steal_s = _involuntary_switches(), _steal_s()

    def since(self) -> dict[str, float]:
        return {
            "switches": _involuntary_switches() - self._switches,
            "steal_s": _steal_s() - self._steal_s,
        }


def _involuntary_switches() -> int:
    """How often another task took the processor from one of this process's threads."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def _steal_s() -> float:
    """Seconds, over all cores, that the hypervisor kept from this machine; 0 where it does not say."""
    import os

    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
        return int(fields[8]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
