"""What optcli itself costs, beside the work: run by hand, results in benchmarks/README.md.

    .venv/bin/python benchmarks/overheads.py

Measures the isolation of a step (a forked worker that does nothing, and the store's put), a fresh
worker, `optcli --help`, and a fully cached build of the quickstart (build it once before).
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import NoneType
from typing import Any

import checked

from optcli import workers
from optcli.store import Store, key_of
from optcli.workers import Channel

ROOT = Path(__file__).parents[1]
WARM = ["numpy", "torch", "torchvision", "onnx", "onnxruntime", "openvino", "nncf"]


def nothing(payload: dict[str, Any], channel: Channel) -> None:
    """A call that does nothing."""


def seconds(function: Callable[[], object], repeats: int) -> list[float]:
    """Wall time of each of several calls, in seconds."""
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        found.append(time.perf_counter() - start)
    return found


def report(name: str, found: list[float]) -> None:
    """One line: median and largest."""
    middle, largest = statistics.median(found) * 1e3, max(found) * 1e3
    print(f"{name:<58} median {middle:8.1f} ms, largest {largest:8.1f} ms")


def forked_step(server: workers.ForkServer, store: Store, number: int) -> None:
    """All that surrounds a step in a build: lock, work folder, worker, put."""
    ingredients = {"step": "nothing", "number": number}
    key = key_of(ingredients)
    with store.lock("artifact", key), store.work("artifact", key) as work:
        (work / "file").write_bytes(b"x" * 1_000_000)
        with server.start("overheads:nothing", {}) as child:
            child.result(NoneType, 60)
        store.put("artifact", key, work, {}, ingredients)


def main() -> None:
    """Print all figures."""
    import os

    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    server = workers.ForkServer(WARM)
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        forked_step(server, store, -1)  # waits for the imports
        numbers = iter(range(1000))
        report(
            "a step in a forked worker, warm",
            seconds(lambda: forked_step(server, store, next(numbers)), 20),
        )
    server.close()
    report("a fresh worker", seconds(lambda: workers.run("overheads:nothing", {}, NoneType), 10))

    def run(*arguments: str) -> None:
        checked.optcli(*arguments, fine=(0,), cwd=ROOT)

    report("optcli --help", seconds(lambda: run("--help"), 10))
    report(
        "optcli build recipes/quickstart.yaml, all cached",
        seconds(lambda: run("build", "recipes/quickstart.yaml"), 5),
    )


if __name__ == "__main__":
    checked.told(main)
