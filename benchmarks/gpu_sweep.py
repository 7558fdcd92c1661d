"""Batch sweeps on a GPU, the lines through them, and what `optcli plan` makes of them.

    python benchmarks/gpu_sweep.py [--networks resnet50,vit_b_16] [--largest 128]

For each network: a build of an FP16 engine, or of another variant of `gpu_check.py` (`--variant aoti`),
with `latency.sweep`, then a plan for a promise of twice the time of the largest batch, at 60 % of the
images a second that this batch allows. Writes
`benchmarks/results/gpu-sweep.json` after each network. Exit code 1 where a network has no plan.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY), str(Path(__file__).parent)]

import checked  # noqa: E402
import gpu_recipes  # noqa: E402
from checked import NotDoneError  # noqa: E402

from optcli import environment  # noqa: E402
from optcli.models.engines import driver  # noqa: E402

_SHARE = 0.6
_TIMEOUT_S = 600.0


def main() -> int:
    """Sweep and plan; 1 where one of the networks has no plan."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--networks", default="resnet50,vit_b_16")
    parser.add_argument("--variant", default="trt-fp16", help="of gpu_check.py, such as aoti")
    parser.add_argument("--largest", type=int, default=128, help="the largest batch")
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=40.0, help="time for one sweep at most")
    parser.add_argument("--work", type=Path, help="default: a temporary folder")
    parser.add_argument(
        "--out", type=Path, default=REPOSITORY / "benchmarks" / "results" / "gpu-sweep.json"
    )
    chosen = parser.parse_args()
    if found := driver.absence():
        sys.stderr.write(f"gpu_sweep cannot run here: {found.message}\n")
        return 3
    work = chosen.work or Path(tempfile.mkdtemp(prefix="optcli-gpu-sweep-"))
    device = driver.devices()[0]
    results: dict[str, Any] = {
        "command": shlex.join([Path(sys.executable).name, *sys.argv]),
        "gpu": {"name": device.name, "driver": device.driver, "cuda": device.cuda},
        "versions": environment.versions(("torch", "onnx", "tensorrt")),
        "networks": {},
    }
    for name in chosen.networks.split(","):
        results["networks"][name] = _network(name, work, chosen)
        chosen.out.parent.mkdir(parents=True, exist_ok=True)
        chosen.out.write_text(json.dumps(results, indent=1) + "\n")
    return 0 if all(each.get("plan") for each in results["networks"].values()) else 1


def _network(name: str, work: Path, chosen: argparse.Namespace) -> dict[str, Any]:
    recipe = _recipe(name, work, chosen)
    at = ["--artifacts", str(work / "artifacts"), "--store", str(work / "store")]
    report = work / "artifacts" / f"gpu-sweep-{name}" / "report.json"
    asked: dict[str, Any] = {"cwd": REPOSITORY, "timeout": _TIMEOUT_S}
    try:
        checked.optcli("build", str(recipe), *at, wanted=checked.report_of(report.parent), **asked)
    except NotDoneError as error:
        sys.stderr.write(f"{name} FAILED: {error}\n")
        return {"failed": str(error)}
    variant = json.loads(report.read_text())["variants"][chosen.variant]
    sweep = variant.get("sweep") or {}
    found = {"status": variant["status"], "reason": variant["reason"], "sweep": sweep}
    points = sweep.get("points") or []
    if not points:
        return found
    last = points[-1]
    largest_ms = last["p50_ms"]["value"]
    rate = _SHARE * last["batch_size"] * 1000 / largest_ms
    promise = [
        "--variant",
        chosen.variant,
        "--slo",
        f"p95={2 * largest_ms:.3f}ms",
        "--rate",
        f"{rate:.0f}",
    ]
    found["promise"] = promise
    try:
        plan = checked.optcli_answer("plan", str(report), *promise, "--json", *at[:2], **asked)
    except NotDoneError as error:
        sys.stderr.write(f"{name} FAILED: {error}\n")
        return {**found, "plan": None, "failed": str(error)}
    return {**found, "plan": plan}


def _recipe(name: str, work: Path, chosen: argparse.Namespace) -> Path:
    """The network of `gpu_check.py` as one engine with a profile up to the largest batch."""
    network = gpu_recipes.torch_network(name, 224, (1, chosen.largest))
    path = gpu_recipes.write(network, work)
    recipe = json.loads(path.read_text())
    (spec,) = recipe["inputs"]
    spec["batch"] = {"min": 1, "opt": chosen.largest // 2, "max": chosen.largest}
    sweep = {
        "max": chosen.largest,
        "max_seconds": chosen.seconds,
        "launches": chosen.launches,
    }
    recipe["name"] = f"gpu-sweep-{name}"
    recipe["latency"] = {"mode": "quick", "batch_sizes": [1], "sweep": sweep}
    recipe["variants"] = {chosen.variant: recipe["variants"][chosen.variant]["passes"]}
    path = work / f"{name}-sweep.yaml"
    path.write_text(json.dumps(recipe, indent=2))
    return path


if __name__ == "__main__":
    sys.exit(main())
