"""What a PyTorch network gains where the process keeps memory that is freed, as optcli's runners do.

    python benchmarks/kept_memory.py [--networks resnet50,vit_b_16] [--batch-sizes 1,8] [--launches 5]

Networks of torchvision with random weights, eager on the CPU, called by hand. Each launch is a process
of its own; launches with and without take turns. It prints the median over launches of p50, how far
launches lie apart (slowest over fastest) and page faults of a call, and writes
`results/kept_memory.json`.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import checked

from optcli import environment

NETWORKS = "resnet50,mobilenet_v3_large,efficientnet_b0,convnext_tiny,vit_b_16"
RESULTS = Path(__file__).parent / "results" / "kept_memory.json"


def main() -> None:
    """Measure every network at every batch size, both ways in turns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", default=NETWORKS)
    parser.add_argument("--batch-sizes", default="1,8")
    parser.add_argument("--launches", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        name, size, kept = arguments.one.split("|")
        sys.stdout.write(json.dumps(_launch(name, int(size), kept == "kept", arguments.seconds)))
        return
    rows = []
    sys.stdout.write("| network | batch | by default ms (apart, faults) | kept ms | faster |\n")
    sys.stdout.write("| --- | --- | --- | --- | --- |\n")
    for name in arguments.networks.split(","):
        for size in arguments.batch_sizes.split(","):
            row = _measured(name, int(size), arguments.launches, arguments.seconds)
            rows.append(row)
            one, other = (
                f"{row[way]['p50_ms']:.1f} ({row[way]['apart']:.2f}, {row[way]['faults']:.0f})"
                for way in ("default", "kept")
            )
            sys.stdout.write(f"| {name} | {size} | {one} | {other} | {row['speedup']:.2f} |\n")
            sys.stdout.flush()
    found = {
        "command": " ".join(["python", *sys.argv]),
        "machine": environment.cpu()["model"],
        "cores": environment.usable_cores(),
        "torch": environment.version("torch"),
        "rows": rows,
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def _measured(name: str, size: int, launches: int, seconds: float) -> dict[str, Any]:
    ways: dict[str, list[dict[str, float]]] = {"default": [], "kept": []}
    for number in range(launches):
        for way in sorted(ways, reverse=bool(number % 2)):
            command = [sys.executable, __file__, "--one", f"{name}|{size}|{way}"]
            command += ["--seconds", str(seconds)]
            ways[way].append(checked.answer(f"{name}, {way}", command))
            checked.figures(f"{name}, {way}", ways[way][-1], "p50_ms", "peak_mb")
    row: dict[str, Any] = {"network": name, "batch_size": size}
    for way, found in ways.items():
        times = [each["p50_ms"] for each in found]
        row[way] = {
            "p50_ms": round(median(times), 3),
            "apart": round(max(times) / min(times), 3),
            "faults": median(each["faults"] for each in found),
            "peak_mb": round(median(each["peak_mb"] for each in found)),
        }
    row["speedup"] = round(row["default"]["p50_ms"] / row["kept"]["p50_ms"], 3)
    return row


def _launch(name: str, size: int, kept: bool, seconds: float) -> dict[str, float]:
    """p50 in ms, page faults of a call and the peak of the process in MB."""
    import torch
    from torchvision import models

    from optcli.workers import memory

    if kept:
        memory.keep_freed()
    torch.set_num_threads(environment.usable_cores())
    torch.manual_seed(0)
    model = models.get_model(name).eval()
    images = torch.randn(size, 3, 224, 224)
    times: list[float] = []
    with torch.no_grad():
        for _ in range(5):
            model(images)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(times) < 5:
            start = time.perf_counter()
            model(images)
            times.append(time.perf_counter() - start)
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "p50_ms": 1e3 * median(times),
        "faults": (used.ru_minflt - before) / len(times),
        "peak_mb": used.ru_maxrss / 1024,
    }


if __name__ == "__main__":
    checked.told(main)
