"""The same artifact twice, and a copy that is 5 % slower: what the intervals of speed-ups are worth.

    .venv/bin/python benchmarks/same_twice.py --runs 100 [--mode table] [--hogs 2] [--model medium]

Wanted: the 95 % interval of the copy's ratio contains 1 in at least 90 of 100 runs, and in table mode
the interval of the slowed copy does not. Prints a line for each run and the counts.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import measuring

from optcli.measure import latency
from optcli.measure.latency import Candidate
from optcli.observer import Silent
from optcli.results import Estimate
from optcli.settings.latency import LatencySettings


def contains_one(found: Estimate) -> bool:
    """Whether the interval cannot tell the two apart."""
    assert found.low is not None
    assert found.high is not None
    return found.low <= 1 <= found.high


def main() -> int:
    """Run and count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--mode", default="table", choices=["quick", "table"])
    parser.add_argument("--model", default="medium", choices=list(measuring.MODELS))
    parser.add_argument("--threads", type=int)
    parser.add_argument("--hogs", type=int, default=0)
    parser.add_argument("--slower", type=float, default=0.05)
    chosen = parser.parse_args()
    os.environ["SLOWER"] = str(chosen.slower)
    settings = LatencySettings.model_validate({"mode": chosen.mode, "threads": chosen.threads})
    same, told, widths, seconds = 0, 0, [], []
    with tempfile.TemporaryDirectory() as folder, measuring.hogs(chosen.hogs):
        artifact, inputs = measuring.model(chosen.model, Path(folder))
        candidates = [
            Candidate("first", artifact, "onnxruntime"),
            Candidate("second", artifact, "onnxruntime"),
            Candidate("slower", artifact, "onnxruntime", serve="measuring:serve_slower"),
        ]
        for run in range(chosen.runs):
            began = time.monotonic()
            measured = latency.measure(
                latency.LatencyOrder(tuple(candidates), "first", inputs, None, settings, run),
                Path(folder) / "logs",
                Silent(),
            )
            seconds.append(time.monotonic() - began)
            rows = latency.to_results(measured)
            twice, slowed = rows["second"][0].speedup, rows["slower"][0].speedup
            assert twice is not None
            assert slowed is not None
            same += contains_one(twice)
            told += slowed.high is not None and slowed.high < 1
            widths.append((twice.high or 0) - (twice.low or 0))
            print(
                f"{run + 1:3d}: p50 {rows['first'][0].p50_ms.value:.4f} ms, "
                f"the same {twice.value:.4f} [{twice.low:.4f}, {twice.high:.4f}], "
                f"slowed {slowed.value:.4f} [{slowed.low:.4f}, {slowed.high:.4f}]; "
                f"{'; '.join(flag.text for flag in rows['first'][0].flags)}",
                flush=True,
            )
    print(
        f"{chosen.model}, {chosen.mode}, {chosen.hogs} hogs: 1 in the interval of the same artifact in "
        f"{same} of {chosen.runs} runs, the copy slowed by {chosen.slower:.0%} told apart in {told}; "
        f"median width {median(widths):.4f}, {median(seconds):.1f} s a run"
    )
    return 0 if same >= 0.9 * chosen.runs else 1


if __name__ == "__main__":
    sys.exit(main())
