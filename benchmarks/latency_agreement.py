"""optcli's p50 against a bare ONNX Runtime loop with the same settings, interleaved in one run.

    .venv/bin/python benchmarks/latency_agreement.py [--threads 1] [--mode table]

Both are measured in the same rounds, in processes of their own. Wanted: within 5 µs for the small
network and within 2 % for the large one. Ends with 1 where they are not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import measuring

from optcli.measure import latency
from optcli.measure.latency import Candidate
from optcli.observer import Silent
from optcli.settings.latency import LatencySettings


def main() -> int:
    """Print both, their difference and what was wanted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--mode", default="table", choices=["quick", "table"])
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    settings = LatencySettings.model_validate({"mode": chosen.mode, "threads": chosen.threads})
    agrees = True
    with tempfile.TemporaryDirectory() as folder:
        for name in ("small", "large"):
            artifact, inputs = measuring.model(name, Path(folder))
            measured = latency.measure(
                latency.LatencyOrder(
                    (
                        Candidate("bare", artifact, "onnxruntime", serve="measuring:serve_bare"),
                        Candidate("optcli", artifact, "onnxruntime"),
                    ),
                    "bare",
                    inputs,
                    None,
                    settings,
                    chosen.seed,
                ),
                Path(folder) / "logs",
                Silent(),
            )
            rows = latency.to_results(measured)
            bare, ours = rows["bare"][0].p50_ms, rows["optcli"][0].p50_ms
            more = ours.value - bare.value
            within = abs(more) <= (0.005 if name == "small" else 0.02 * bare.value)
            agrees = agrees and within
            ratio = rows["optcli"][0].speedup
            print(
                f"{name:<6} bare {bare.value:.4f} ms [{bare.low:.4f}, {bare.high:.4f}], "
                f"optcli {ours.value:.4f} ms: {more * 1e3:+.1f} µs ({more / bare.value:+.2%}), "
                f"paired {1 / ratio.value - 1:+.2%} [{1 / ratio.high - 1:+.2%}, "
                f"{1 / ratio.low - 1:+.2%}]: {'agrees' if within else 'DIFFERS'}"
            )
            for row in (rows["bare"][0], rows["optcli"][0]):
                doubts = "; ".join(flag.text for flag in row.flags) or "no doubts"
                print("      ", row.samples, "calls;", doubts)
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main())
