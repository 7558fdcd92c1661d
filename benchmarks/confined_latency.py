"""What confinement costs a call of a model: run by hand, results in benchmarks/README.md.

    .venv/bin/python benchmarks/confined_latency.py [PAIRS]

Free and confined workers take turns in pairs: each opens a small network in ONNX Runtime and in
PyTorch, and times its calls, beside the cheapest system call there is. Gives the medians over the
pairs, and the median of confined over free with its spread.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import NoneType
from typing import Any

from optcli import workers
from optcli.workers import Channel, confinement

_CALLS = {"system call": 20_000, "ONNX Runtime": 3_000, "PyTorch": 1_500}


def timed(payload: dict[str, Any], channel: Channel) -> dict[str, float]:
    """Median nanoseconds of one call of each kind."""
    import numpy as np
    import onnxruntime
    import torch

    torch.set_num_threads(1)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        payload["model"], options, providers=["CPUExecutionProvider"]
    )
    image = np.ones((1, 3, 32, 32), np.float32)
    network, tensor = _network(), torch.from_numpy(image)
    with torch.no_grad():
        return {
            "system call": _median_ns(os.getppid, "system call"),
            "ONNX Runtime": _median_ns(lambda: session.run(None, {"image": image}), "ONNX Runtime"),
            "PyTorch": _median_ns(lambda: network(tensor), "PyTorch"),
        }


def _median_ns(call: Callable[[], object], kind: str) -> float:
    found = []
    for _ in range(_CALLS[kind]):
        start = time.perf_counter_ns()
        call()
        found.append(time.perf_counter_ns() - start)
    return statistics.median(found[len(found) // 10 :])


def _network() -> Any:
    import torch

    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 16, 3), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.LazyLinear(10)).eval()


def write_model(payload: dict[str, Any], channel: Channel) -> None:
    """The network as ONNX."""
    import torch

    network, image = _network(), torch.ones(1, 3, 32, 32)
    network(image)
    torch.onnx.export(network, (image,), payload["model"], dynamo=False, input_names=["image"])


def main() -> None:
    """Print all figures."""
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    print(f"walls: {confinement.available()}, {pairs} pairs")
    found: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as folder:
        payload = {"model": str(Path(folder, "model.onnx"))}
        workers.run("confined_latency:write_model", payload, NoneType)
        for number in range(pairs):
            for confined in (number % 2 == 0, number % 2 == 1):
                where = () if confined else None
                found[confined].append(
                    workers.run(
                        "confined_latency:timed",
                        payload,
                        dict[str, float],
                        environment={"OMP_NUM_THREADS": "1"},
                        confined=where,
                    )
                )
    for kind in _CALLS:
        free, held = ([each[kind] / 1e3 for each in found[which]] for which in (False, True))
        ratios = sorted(b / a for a, b in zip(free, held, strict=True))
        middles = [statistics.median(each) for each in (free, held, ratios)]
        print(
            f"{kind:<14} free {middles[0]:9.3f} us, confined {middles[1]:9.3f} us,"
            f" ratio {middles[2]:.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"
        )


if __name__ == "__main__":
    main()
