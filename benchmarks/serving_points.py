"""What `optcli plan` predicts of a running server beside what `optcli loadtest` measures.

    .venv/bin/python benchmarks/serving_points.py --shared FOLDER --work FOLDER [--models NAMES]

For each of three trained networks: a build with a sweep of batch sizes, one thread; a plan with sealed
batches; a bundle for Ray Serve; then one calibration through the running server and three loads, at 30,
50 and 70 % of the capacity that the calibration gives, and the search for the limit. The model has
processor 0; the ingress, Ray and the client have processor 1. Each row of the result has p95 as
measured, as the plan's curve predicts and as the calibrated curve predicts. Wanted is: the calibrated
p95 within 25 % of the measured one at every point, the median error within 15 %, and the measured limit
within 15 % of the calibrated prediction.

The machine must be idle. A load lasts --seconds, one of the search a third of that: with the 36 of the
default, a network takes about seven minutes. Results are written after each network, in place of its
older ones; with --dry-run nothing is. Ends with 1 where an aim is missed.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import checked

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "serving.json"
_SHARES = (0.3, 0.5, 0.7)
_POINT, _MEDIAN, _LIMIT = 0.25, 0.15, 0.15
# Where the search for the limit begins, as a share of the capacity.
_FIRST = 0.8
_TIMEOUT_S = 5400.0

_IMAGENET = "mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]"
_CIFAR = f"{{scale: 1/255, {_IMAGENET}}}"
_FASHION = (
    "{resize: 32, resize_in: float32, channel_order: rgb, scale: 1/255, mean: 0.2860, std: 0.3530}"
)
_LETTERBOX = "{letterbox: {size: 416, fill: 114}, channel_order: bgr}"
# Name of the file, input, evaluation data, what the plan is to promise, and the largest batch.
MODELS: dict[str, dict[str, str]] = {
    "resnet20_cifar10": {
        "input": "{name: input, dtype: float32, shape: [batch, 3, 32, 32],"
        " batch: {min: 1, opt: 8, max: 16}}",
        "data": f'{{source: "imagefolder:SHARED/datasets/cifar10_subset/test", samples: 200,'
        f" prepare: {_CIFAR}}}",
        "slo": "p95=150ms",
        "batch": "1",
    },
    "vit_tiny_fashion": {
        "input": "{name: input, dtype: float32, shape: [batch, 3, 32, 32],"
        " batch: {min: 1, opt: 8, max: 16}}",
        "data": '{source: "torchvision:FashionMNIST", root: "SHARED/datasets", split: test,'
        f" samples: 200, prepare: {_FASHION}}}",
        "slo": "p95=200ms",
        "batch": "4",
    },
    "yolox_nano": {
        "input": "{name: images, dtype: float32, shape: [1, 3, 416, 416]}",
        "data": '{source: "imagefolder:SHARED/datasets/coco_tiny_val/images", samples: 16,'
        f" prepare: {_LETTERBOX}}}",
        "slo": "p95=600ms",
        "batch": "1",
    },
}


def main() -> None:
    """Build, plan, deploy, calibrate, load, compare; print a table and write the results."""
    given = _arguments()
    rows: list[dict[str, Any]] = []
    for name in given.models.split(","):
        begun = time.monotonic()
        found = _of_model(name, given.shared.absolute(), given.work.absolute() / name, given.seconds)
        rows += found
        print(f"{name}: {(time.monotonic() - begun) / 60:.1f} minutes", flush=True)
        if not given.dry_run:
            _write(name, found, given.seconds)
    sys.exit(_judged(rows))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shared", type=Path, required=True, help="has models/ and datasets/")
    parser.add_argument("--work", type=Path, required=True, help="where everything is built")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--seconds", type=float, default=36.0, help="how long each load lasts")
    parser.add_argument("--dry-run", action="store_true", help="keep no results")
    return parser.parse_args()


def _of_model(name: str, shared: Path, work: Path, seconds: float) -> list[dict[str, Any]]:
    work.mkdir(parents=True, exist_ok=True)
    about = MODELS[name]
    recipe = work / "recipe.yaml"
    recipe.write_text(
        f"version: 1\nname: {name}\n"
        f'model: {{source: "onnx:{shared}/models/{name}.onnx"}}\n'
        f"inputs:\n  - {about['input']}\n"
        f"data:\n  evaluation: {about['data'].replace('SHARED', str(shared))}\n"
        "latency: {mode: quick, batch_sizes: [1], threads: 1, sweep: true}\n"
        "variants:\n  onnx: {passes: [], runner: {name: onnxruntime, threads: 1}}\n"
    )
    places = ["--artifacts", str(work / "artifacts")]
    wanted = checked.report_of(work / "artifacts")
    checked.optcli("build", str(recipe), "--store", str(work / "store"), *places, wanted=wanted)
    rate = _half_of_capacity(work / "artifacts" / name / "report.json")
    plan = answer(
        *("plan", str(recipe), "--variant", "onnx", "--rate", f"{rate:.4g}", "--slo", about["slo"]),
        *("--target", "ray", "--instances", "1"),
        *("--batch", about["batch"], "--json", *places),
    )
    (work / "plan.json").write_text(json.dumps(plan))
    bundle = work / "bundle"
    if not (bundle / "bundle.json").is_file():
        deploy(
            *("onnx", str(recipe), "--target", "ray", "--plan", str(work / "plan.json")),
            *("--force", "--store", str(work / "store"), *places),
            out=bundle,
        )
    store = ["--store", str(work / "store")]
    pinned = [*store, "--model-cpus", "0", "--client-cpus", "1", "--json"]
    short = ["--rate", "5", "--seconds", "6", "--windows", "1"]
    first = answer(
        *("loadtest", str(bundle), "--calibrate", *short, *pinned),
        wanted=checked.Wanted(bundle, "calibration.json"),
    )
    capacity = _capacity(bundle)
    rates = [f"{share * capacity:.4g}" for share in _SHARES]
    asked = [part for rate in rates for part in ("--rate", rate)]
    points = answer("loadtest", str(bundle), *asked, "--seconds", f"{seconds:g}", *pinned)
    search = ["--rate", f"{_FIRST * capacity:.4g}", "--seconds", f"{seconds / 3:g}"]
    limit = answer("loadtest", str(bundle), "--find-limit", *search, *pinned)
    rows = [_row(name, point, share) for point, share in zip(points["points"], _SHARES, strict=True)]
    calibration = json.loads((bundle / "calibration.json").read_text())
    served = {key: value for key, value in first["served"].items() if key not in ("url", "folder")}
    rows.append({"model": name, "limit": limit["limit"], "served": served})
    return [*rows, {"model": name, "calibration": calibration}]


def _half_of_capacity(report: Path) -> float:
    """Half of what batches of the largest measured size answer in a second."""
    latency = json.loads(report.read_text())["variants"]["onnx"]["latency"]
    rates = [row["batch_size"] / row["p50_ms"]["value"] * 1000 for row in latency]
    return 0.5 * max(rates)


def _capacity(bundle: Path) -> float:
    """Requests a second with full batches, by the calibration: of the replica, or of the ingress."""
    known = json.loads((bundle / "calibration.json").read_text())
    beside_ms = known["replica_ms"] if known["own_processors"] else 0.0
    replica = max(1000 / (ms / int(size) + beside_ms) for size, ms in known["points_ms"].items())
    return float(min(replica, 1000 / max(known["ingress_ms"], 1e-3)))


def _row(name: str, point: dict[str, Any], share: float) -> dict[str, Any]:
    measured = (point["p95_ms"] or {}).get("value")
    predicted = {each["by"]: each["p95_ms"] for each in point["predicted"]}
    errors = {by: p95 / measured - 1 for by, p95 in predicted.items() if p95 is not None and measured}
    return {
        "model": name,
        "load": share,
        "rate_per_s": point["rate_per_s"],
        "p95_ms": point["p95_ms"],
        "predicted_p95_ms": predicted,
        "error": errors,
        "steady": point["steady"],
        "outcome": point["outcome"],
        "reason": point["reason"],
        "client": point["client"],
        "server": point["server"],
    }


def _judged(rows: list[dict[str, Any]]) -> int:
    """Print the table and the aims; 1 where one is missed."""
    points = [row for row in rows if "load" in row]
    for row in points:
        errors = ", ".join(f"{by} {100 * error:+.0f} %" for by, error in row["error"].items())
        print(
            f"{row['model']:20} {row['load']:.1f} {row['rate_per_s']:8.1f}/s  {row['p95_ms']}  {errors}"
        )
    errors = [abs(row["error"].get("calibration", 1.0)) for row in points]
    missed = [f"{sum(error > _POINT for error in errors)} of {len(errors)} points beyond {_POINT:.0%}"]
    missed = missed if any(error > _POINT for error in errors) else []
    if errors and median(errors) > _MEDIAN:
        missed.append(f"the median error is {median(errors):.0%}, wanted {_MEDIAN:.0%}")
    for row in (row for row in rows if "limit" in row):
        limit = row["limit"] or {}
        print(f"{row['model']:20} limit {limit}")
        found = limit.get("rate_per_s")
        predicted = (limit.get("predicted_per_s") or {}).get("calibration")
        if not found or not predicted or abs(found / predicted - 1) > _LIMIT:
            missed.append(f"{row['model']}: the limit is {found}, predicted {predicted}")
    print("\n".join(missed) or "all aims are met")
    return 1 if missed else 0


def _write(name: str, rows: list[dict[str, Any]], seconds: float) -> None:
    """Keep the rows of a network in place of its older ones."""
    known = json.loads(RESULTS.read_text())["rows"] if RESULTS.is_file() else []
    about = {
        "when": time.strftime("%Y-%m-%d %H:%M"),
        "machine": platform.platform(),
        "command": f"benchmarks/serving_points.py --shared FOLDER --work FOLDER --models {name}"
        f" --seconds {seconds:g}",
    }
    kept = [row for row in known if row["model"] != name] + [{**about, **row} for row in rows]
    RESULTS.write_text(json.dumps({"rows": kept}, indent=1) + "\n")


def answer(*arguments: str, **more: Any) -> Any:
    """What a verb answers. Verdicts may reject; anything else that fails ends the benchmark."""
    return checked.optcli_answer(*arguments, timeout=_TIMEOUT_S, **more)


def deploy(*arguments: str, out: Path) -> None:
    """Write a bundle."""
    wanted = checked.Wanted(out, "bundle.json")
    checked.optcli("deploy", *arguments, "--out", str(out), fine=(0,), wanted=wanted)


if __name__ == "__main__":
    checked.told(main)
