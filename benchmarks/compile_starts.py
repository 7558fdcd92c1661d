"""How long torch.compile takes to start, cold and from the seed that `torch_compile` keeps.

    .venv/bin/python benchmarks/compile_starts.py [NETWORK ...]

For each torchvision network and with and without `freezing`: the pass (cold), then a fresh process
that opens the artifact (warm, importing Inductor included): wall time, and the processor time of it and
of the compilers it started, which other work on the machine changes little. Batch sizes 1 and 8,
224 x 224, all usable cores. Also how fast the result is: median calls, eager and compiled in turns.
"""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from optcli import workers
from optcli.artifact import Artifact, Format
from optcli.environment import usable_cores
from optcli.observer import Silent
from optcli.passes import Job
from optcli.passes.torch_compile import TorchCompile
from optcli.runners.torch import TorchRunner
from optcli.settings import TensorSpec
from optcli.sources.torchvision import TorchvisionSource
from optcli.workers import Channel, messages

INPUTS = (
    TensorSpec(name="image", shape=("batch", 3, 224, 224), ranges={"batch": {"opt": 8, "max": 8}}),
)


def write(payload: dict[str, Any], channel: Channel) -> dict[str, Any]:
    """The network as an artifact."""
    out = Path(payload["out"])
    found = TorchvisionSource(target=payload["network"], folder=out).write(out, INPUTS)
    artifact = Artifact("", Format.TORCH, out, found.precision, 0, "", {"outputs": list(found.outputs)})
    return messages.to_record(artifact)


class Clock:
    """Wall and processor seconds since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), _cpu_s()

    def read(self) -> tuple[float, float]:
        return time.perf_counter() - self._wall, _cpu_s() - self._cpu


def _cpu_s() -> float:
    own, children = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def compile_it(payload: dict[str, Any], channel: Channel) -> tuple[float, float]:
    """Seconds of the pass; importing torch is left out."""
    import torch._inductor  # noqa: F401

    source, out = messages.read(Artifact, payload["source"]), Path(payload["out"])
    job = Job(out, INPUTS, source, Silent(), batch_sizes=(1, 8), threads=usable_cores())
    clock = Clock()
    TorchCompile(freezing=payload["freezing"]).run(source, job)
    return clock.read()


def start_it(payload: dict[str, Any], channel: Channel) -> dict[str, Any]:
    """Seconds until an artifact is open, and its median calls beside those of the network as it is."""
    import numpy as np
    import torch  # noqa: F401

    made = messages.read(Artifact, payload["made"])
    clock = Clock()
    found: dict[str, Any] = {}
    with TorchRunner().open(made, INPUTS) as compiled:
        found["load_s"] = clock.read()
        found["kernels"] = compiled.effective()["kernels_compiled_at_load"]
        with TorchRunner(compile=False).open(made, INPUTS) as eager:
            for size in (1, 8):
                times: dict[TorchRunner, list[float]] = {compiled: [], eager: []}
                feed = {"image": np.zeros((size, 3, 224, 224), np.float32)}
                for _ in range(payload["calls"]):
                    for runner, spent in times.items():
                        start = time.perf_counter()
                        runner.run(feed)
                        spent.append(time.perf_counter() - start)
                found[f"b{size}"] = [statistics.median(each) * 1e3 for each in times.values()]
    return found


def _told(seconds: tuple[float, float]) -> str:
    return f"{seconds[0]:.1f} s (processor {seconds[1]:.1f} s)"


def main() -> None:
    """Print one line for each network and way."""
    import os

    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    for network in sys.argv[1:] or ["resnet18", "mobilenet_v3_small"]:
        for freezing in (True, False):
            with tempfile.TemporaryDirectory() as folder:
                places = {name: Path(folder, name) for name in ("network", "compiled")}
                for place in places.values():
                    place.mkdir()
                place = {"network": network, "out": str(places["network"])}
                source = workers.run("compile_starts:write", place, dict[str, Any])
                out = str(places["compiled"])
                told = {"source": source, "out": out, "freezing": freezing}
                cold_s = workers.run("compile_starts:compile_it", told, tuple[float, float])
                made = {**source, "path": out}
                told = {"made": made, "calls": 20}
                warm = workers.run("compile_starts:start_it", told, dict[str, Any])
                told = f"{network:<20} freezing {freezing!s:<5} cold {_told(cold_s)}, "
                told += f"warm {_told(warm['load_s'])}"
                calls = [
                    f"batch {size}: {eager:.1f} -> {compiled:.1f} ms"
                    for size, (compiled, eager) in ((size, warm[f"b{size}"]) for size in (1, 8))
                ]
                print(f"{told} ({warm['kernels']} kernels compiled), {', '.join(calls)}", flush=True)


if __name__ == "__main__":
    main()
