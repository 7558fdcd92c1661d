"""What a running server does beyond its limit, and what its batching costs.

    .venv/bin/python benchmarks/serving_limits.py --work FOLDER [--models NAMES] [--search]

FOLDER is that of `serving_points.py`, which made the bundles and their calibrations. For each network a
plan is made with the calibration (`optcli plan --calibration`) for 0.7 times the limit, and a bundle
with that plan, whose queue then fits the server as it is. The limit is that of `serving_points.py`;
with `--search` it is searched anew, since the speed of a shared machine is not that of another day:

- overload: 60 s at 1.5 times the highest rate that was confirmed (or that the calibration predicts).
  Wanted is: goodput of at least 85 % of that rate, p99 of what was answered within the deadline, memory
  that grows by less than 5 %.
- batches: images per second with single images that the server batches, beside the same with requests
  that hold whole batches, both with as many requests in flight as the server likes, in turns. Wanted is
  0.9 of it.

The model has processor 0; the ingress, Ray and the client have processor 1. The machine must be idle.
Ends with 1 where an aim is missed.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import shutil
import sys
import tempfile
import threading
import time
import urllib.parse
from pathlib import Path
from statistics import median
from typing import Any

import checked
import numpy as np
from serving_points import MODELS, RESULTS, answer, deploy

from optcli.observer import Silent
from optcli.serving.loadtest import Options
from optcli.serving.loadtest import opening as serving

LIMITS = RESULTS.with_name("serving_limits.json")
_TIMES, _PLANNED, _GOOD, _GROWTH, _BATCHED = 1.5, 0.7, 0.85, 0.05, 0.9
_MODEL_CPUS, _CLIENT_CPUS = (0,), {1}
_ROUNDS, _SETTLE_S, _COUNTED_S = 4, 2.0, 8.0


def main() -> None:
    """Overload and hand-over of each network; print, write, judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--work", type=Path, required=True, help="that of serving_points.py")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--search", action="store_true", help="search for the limits first")
    given = parser.parse_args()
    known = json.loads(RESULTS.read_text())["rows"]
    rows, missed = [], []
    for name in given.models.split(","):
        work = given.work.absolute() / name
        limit = _searched(work / "bundle") if given.search else _limit(name, known)
        bundle = _fitted(work, name, limit)
        row = {"model": name, "batches": _batches(bundle), "overload": _overload(bundle, limit)}
        rows.append(row)
        missed += _missed(row)
        print(json.dumps(row), flush=True)
        content = {
            "command": f"benchmarks/serving_limits.py --work FOLDER --models {given.models}"
            f"{' --search' * given.search}",
            "machine": platform.platform(),
            "rows": rows,
        }
        LIMITS.write_text(json.dumps(content, indent=1) + "\n")
    print("\n".join(missed) or "all aims are met")
    sys.exit(1 if missed else 0)


def _limit(name: str, known: list[dict[str, Any]]) -> float:
    """The highest rate that was confirmed, else the predicted one."""
    return _rate_of(next(row["limit"] for row in known if row["model"] == name and "limit" in row))


def _searched(bundle: Path) -> float:
    """The same, searched for now."""
    pinned = ["--model-cpus", "0", "--client-cpus", "1", "--json"]
    return _rate_of(answer("loadtest", str(bundle), "--find-limit", *pinned)["limit"])


def _rate_of(limit: dict[str, Any]) -> float:
    return float(limit["rate_per_s"] or limit["predicted_per_s"]["calibration"])


def _fitted(work: Path, name: str, limit: float) -> Path:
    """A bundle whose plan knows what was calibrated."""
    about, recipe, bundle = MODELS[name], str(work / "recipe.yaml"), work / "fitted"
    calibration, places = work / "bundle" / "calibration.json", ["--artifacts", str(work / "artifacts")]
    plan = answer(
        *("plan", "--calibration", str(calibration), "--slo", about["slo"]),
        *("--rate", f"{_PLANNED * limit:.4g}", "--target", "ray", "--json"),
        *("--instances", "1", "--batch", about["batch"]),
    )
    (work / "fitted.json").write_text(json.dumps(plan))
    shutil.rmtree(bundle, ignore_errors=True)
    deploy(
        *("onnx", recipe, "--target", "ray", "--plan", str(work / "fitted.json"), "--force"),
        *("--store", str(work / "store"), *places),
        out=bundle,
    )
    shutil.copy(calibration, bundle)
    return bundle


def _overload(bundle: Path, carried: float) -> dict[str, Any]:
    """A minute at 1.5 times the limit."""
    test = answer(
        *("loadtest", str(bundle), "--rate", f"{_TIMES * carried:.4g}", "--seconds", "60"),
        *("--model-cpus", "0", "--client-cpus", "1", "--json"),
    )
    point = test["points"][0]
    about = json.loads((bundle / "bundle.json").read_text())
    server = point["server"]
    return {
        "limit_per_s": carried,
        "offered_per_s": point["sent_per_s"],
        "answered_per_s": point["answered_per_s"],
        "good_per_s": point["good_per_s"],
        "good_share": point["good_per_s"] / carried,
        "p99_ms": point["p99_ms"],
        "deadline_ms": about["deadline_ms"],
        "slo_ms": test["slo_ms"],
        "failures": point["failures"],
        "memory_bytes": server["memory_bytes"],
        "memory_growth_bytes": server["memory_growth_bytes"],
        "client": point["client"],
    }


def _batches(bundle: Path) -> dict[str, Any] | None:
    """Images per second, batched by the server and handed over as batches; None without batches."""
    about = json.loads((bundle / "bundle.json").read_text())
    batch = about["largest_batch"]
    if not about["batched"] or batch == 1:
        return None
    options = Options(model_cpus=_MODEL_CPUS)
    with np.load(bundle / "samples.npz", allow_pickle=False) as archive:
        samples = {name: archive[name] for name in archive.files}
    with (
        tempfile.TemporaryDirectory() as scratch,
        serving.started_bundle(
            bundle, options, Path(scratch) / "log", Path(scratch), Silent()
        ) as server,
    ):
        os.sched_setaffinity(0, _CLIENT_CPUS)
        single, whole = (_body(samples, rows) for rows in (1, batch))
        url = f"{server.served.url}/v2/models/{about['model']}/infer"
        rounds = [
            (_rate(url, *single, flight=4 * batch), _rate(url, *whole, flight=4) * batch)
            for _ in range(_ROUNDS)
        ]
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    return {
        "batch": batch,
        "batched_per_s": [one for one, _ in rounds],
        "handed_over_per_s": [other for _, other in rounds],
        "share": median(one / other for one, other in rounds),
    }


def _body(samples: dict[str, np.ndarray], rows: int) -> tuple[bytes, dict[str, str]]:
    """A binary request of so many rows, and its headers."""
    inputs, tensors = [], []
    for name, array in samples.items():
        part = np.ascontiguousarray(array[:rows])
        tensors.append(part.tobytes())
        inputs.append(
            {
                "name": name,
                "shape": list(part.shape),
                "datatype": {"float32": "FP32", "int64": "INT64", "uint8": "UINT8"}[part.dtype.name],
                "parameters": {"binary_data_size": len(tensors[-1])},
            }
        )
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    return head + b"".join(tensors), {"Inference-Header-Content-Length": str(len(head))}


def _rate(url: str, body: bytes, headers: dict[str, str], flight: int) -> float:
    """Answers per second with so many requests in flight."""
    parts = urllib.parse.urlsplit(url)
    counts, ends = [0] * flight, time.monotonic() + _SETTLE_S + _COUNTED_S

    def ask(number: int) -> None:
        connection = http.client.HTTPConnection(parts.netloc)
        while time.monotonic() < ends:
            connection.request("POST", parts.path, body, headers)
            response = connection.getresponse()
            response.read()
            counts[number] += response.status == 200

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(flight)]
    for thread in threads:
        thread.start()
    time.sleep(_SETTLE_S)
    before, start = sum(counts), time.monotonic()
    time.sleep(_COUNTED_S - 1)
    rate = (sum(counts) - before) / (time.monotonic() - start)
    for thread in threads:
        thread.join()
    return rate


def _missed(row: dict[str, Any]) -> list[str]:
    missed = []
    over = row["overload"]
    if over["good_share"] < _GOOD:
        missed.append(
            f"{row['model']}: goodput {over['good_share']:.0%} of the limit, wanted {_GOOD:.0%}"
        )
    if over["p99_ms"] is None or over["p99_ms"]["value"] > over["deadline_ms"]:
        missed.append(f"{row['model']}: p99 {over['p99_ms']}, wanted {over['deadline_ms']} ms")
    for process, grown in over["memory_growth_bytes"].items():
        if grown > _GROWTH * over["memory_bytes"][process]:
            missed.append(f"{row['model']}: {process} grew by {grown} bytes")
    if row["batches"] and row["batches"]["share"] < _BATCHED:
        missed.append(f"{row['model']}: batched {row['batches']['share']:.2f} of handed over")
    return missed


if __name__ == "__main__":
    checked.told(main)
