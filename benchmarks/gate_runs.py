"""How often the gate is right: runs against an artifact's own copy, or one that is slower.

    .venv/bin/python benchmarks/gate_runs.py --runs 100 [--slower 0.05] [--hogs 2] [--model medium]

Wanted: of 100 runs against its own copy 1 false alarm and 5 inconclusive ones at most, also with two
hogs; a copy slowed by 5 % fails in at least 95 of 100, one that is 5 % faster never does. Prints a line
for each run and the counts of the median's answers.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median
from types import SimpleNamespace as Some
from typing import cast

import measuring

from optcli.gate.latency import compare
from optcli.gate.side import Gating
from optcli.measure.latency import Candidate
from optcli.observer import Silent
from optcli.runners import DEFAULTS
from optcli.settings.gate import GateSettings


def main() -> int:
    """Run and count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--model", default="medium", choices=list(measuring.MODELS))
    parser.add_argument("--engine", type=Path, help="an engine of TensorRT, in place of the model")
    parser.add_argument(
        "--artifact", type=Path, help="what a build has laid out, in place of the model"
    )
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="begin no run after so long"
    )
    parser.add_argument("--threads", type=int)
    parser.add_argument("--hogs", type=int, default=0)
    parser.add_argument("--slower", type=float, default=0.0, help="below 0: the baseline is slowed")
    parser.add_argument("--baseline-python", help="an interpreter for the baseline")
    chosen = parser.parse_args()
    os.environ["SLOWER"] = str(abs(chosen.slower))
    settings = GateSettings(threads=chosen.threads)
    answers: Counter[str] = Counter()
    seconds, pairs = [], []
    with tempfile.TemporaryDirectory() as folder, measuring.hogs(chosen.hogs):
        if chosen.engine is not None:
            artifact, inputs = measuring.engine(chosen.engine)
        elif chosen.artifact is not None:
            artifact, inputs = measuring.laid_out(chosen.artifact)
        else:
            artifact, inputs = measuring.model(chosen.model, Path(folder))
        runner = DEFAULTS[artifact.format]
        last = time.monotonic() + chosen.seconds
        plain, slow = "optcli.measure.latency.process:serve", "measuring:serve_slower"
        before = Candidate(
            "baseline",
            artifact,
            runner,
            interpreter=chosen.baseline_python,
            serve=slow if chosen.slower < 0 else plain,
        )
        now = Candidate("now", artifact, runner, serve=slow if chosen.slower > 0 else plain)
        # Of a run of the gate, what the comparison of latencies reads.
        made = Some(plan=Some(recipe=Some(inputs=inputs)), feeds=None)
        known = Some(
            settings=settings, made=made, logs=Path(folder) / "logs", observer=Silent(), slo=None
        )
        for run in range(chosen.runs):
            began = time.monotonic()
            if began > last:
                break
            found = compare(cast(Gating, known), before, now, 1, run)
            seconds.append(time.monotonic() - began)
            p50 = next(each for each in found.comparisons if each.metric == "p50")
            p95 = next(each for each in found.comparisons if each.metric == "p95")
            answers[p50.outcome] += 1
            answers[f"p95 {p95.outcome}"] += 1
            pairs.append(p50.pairs)
            print(f"{run + 1:3d}: {p50.outcome:<12} {p50.reason}; p95 {p95.reason}", flush=True)
    print(
        f"{chosen.engine or chosen.artifact or chosen.model}, slower by {chosen.slower:.0%},"
        f" {chosen.hogs} hogs: "
        f"{dict(answers)} of {len(pairs)}; median {median(pairs):g} pairs, {median(seconds):.1f} s, "
        f"at most {max(seconds):.1f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
