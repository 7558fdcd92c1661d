"""What it takes to open a package of AOTInductor and to call it: optcli's way and PyTorch's; by hand.

    .venv/bin/python benchmarks/aoti_opening.py artifacts/quickstart/aoti --shape 1 1 28 28

The folder is a variant that a build has laid out. PyTorch's way is `torch._inductor.aoti_load_package`.
Each opens it in fresh processes, in turns, PyTorch imported before the clock starts. Printed, and
written to benchmarks/results/aoti_opening.json: medians over the processes of the seconds to open it,
the memory that the process has held at most, and the median call at this shape, with two threads.
Of a way that fails the end of what it printed is shown; it has no figures, and the script ends with 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import checked
from checked import NotDoneError

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "aoti_opening.json"
WAYS = ("optcli", "pytorch")
_CALLS = 300


def measure(way: str, folder: Path, shape: Sequence[int]) -> dict[str, float]:
    """Open the package in this process and call it."""
    import torch

    from optcli.formats import aoti
    from optcli.latency.memory import high_water_bytes

    torch.set_num_threads(2)
    began = time.perf_counter()
    model: Callable[..., Any]
    if way == "optcli":
        model = aoti.open(folder)
    else:
        import torch._inductor

        model = torch._inductor.aoti_load_package(str(folder / aoti.FILE))
    opened_s = time.perf_counter() - began
    batch, times = torch.rand(*shape), []
    with torch.inference_mode():
        for _ in range(_CALLS):
            start = time.perf_counter()
            model(batch)
            times.append(time.perf_counter() - start)
    return {
        "open_s": opened_s,
        "call_ms": median(times[_CALLS // 10 :]) * 1e3,
        "memory_mb": high_water_bytes() / 1e6,
    }


def main() -> int:
    """Measure both ways in turns."""
    from optcli import environment

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", type=int, nargs="+", required=True)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.way:
        print(json.dumps(measure(given.way, given.folder, given.shape)))
        return 0
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    failed: dict[str, str] = {}
    for _ in range(given.rounds):
        for way in (way for way in WAYS if way not in failed):
            command = [sys.executable, __file__, *sys.argv[1:], "--way", way]
            try:
                found[way].append(checked.answer(way, command))
                checked.figures(way, found[way][-1], *found[way][-1])
            except NotDoneError as error:
                failed[way] = str(error)
    medians: dict[str, dict[str, float] | None] = {
        way: {name: median(each[name] for each in rounds) for name in rounds[0]}
        for way, rounds in found.items()
        if way not in failed
    }
    medians |= dict.fromkeys(failed)
    for way, figures in medians.items():
        if figures is None:
            print(f"FAILED: {failed[way]}")
        else:
            print(way, ", ".join(f"{name} {value:.4g}" for name, value in figures.items()))
    record = {
        "command": "python benchmarks/aoti_opening.py FOLDER --shape "
        f"{' '.join(map(str, given.shape))} --rounds {given.rounds}",
        "environment": environment.describe(["torch"]),
        "failed": failed,
        "medians": medians,
        "rounds": found,
    }
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    checked.told(main)
