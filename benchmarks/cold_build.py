"""What a build costs from nothing, from a full store and where nothing is to do; by hand.

    .venv/bin/python benchmarks/cold_build.py --rounds 4
    .venv/bin/python benchmarks/cold_build.py --recipe recipes/quickstart.yaml
    .venv/bin/python benchmarks/cold_build.py --beside FOLDER    # another revision of optcli
    .venv/bin/python benchmarks/cold_build.py --peer-python VENV/bin/python

Without `--recipe` the work is Olive's in its usual workflow: torchvision's ResNet-50 with random
weights to ONNX, static INT8 by ONNX Runtime with 32 images, and of the network and of the INT8 model 10
untimed and 20 timed calls of batch size 1. Each round has, in turns for everybody who takes part:

    cold      an empty store
    measured  the store of `cold`, latency measured again
    cached    the store of `cold`, another folder for what is laid out
    no-op     the same again: nothing is to do

Printed, and written to benchmarks/results/cold_build.json: seconds and processor seconds of each build,
the medians, and the share of each step of the cold ones. `--peer-python` is an interpreter that has
Olive (`pip install olive-ai requests "pydantic<2.12"` beside torch, torchvision, onnx and onnxruntime);
without, optcli alone is timed. Olive takes part once for each file of `benchmarks/olive`: `olive.json`
exports as Olive does by default, `olive_dynamo.json` with the exporter that optcli uses.
`--peer-config` names others; their `cache_dir` and `output_dir` are below their folder, which is
copied. Olive is told that it runs in CI: else it waits ten seconds for its telemetry. The machine must
be idle otherwise.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

from optcli import environment

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "cold_build.json"
_OLIVE = ROOT / "benchmarks" / "olive"
PEER_CONFIGS = [_OLIVE / "olive.json", _OLIVE / "olive_dynamo.json"]
IMAGES = 32
RECIPE = """\
version: 1
name: cold-build
model: {source: "torchvision:resnet50"}
inputs:
  - {name: image, dtype: float32, shape: [batch, 3, 224, 224], batch: {min: 1, opt: 1, max: 8}}
data:
  calibration: {source: "npz:images.npz"}
latency: {launches: 1, rounds: 2, calls: 10, warmup: 10, max_seconds: 2}
variants:
  eager: []
  int8: [export_onnx, quantize_onnxruntime]
"""
KINDS = ("cold", "measured", "cached", "no-op")
_HAS_OLIVE = "import importlib.util, sys; sys.exit(importlib.util.find_spec('olive') is None)"


def prepared(folder: Path) -> Path:
    """The recipe of the usual work and its images, in a folder."""
    import numpy as np

    images = np.random.default_rng(0).standard_normal((IMAGES, 3, 224, 224), dtype=np.float32)
    np.savez(folder / "images.npz", image=images)
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE)
    return recipe


def timed(command: Sequence[str], folder: Path, log: Path, **variables: str) -> dict[str, float]:
    """Wall and processor seconds of a command. Raises CalledProcessError where it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    with log.open("ab") as stream:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**os.environ, **variables},
            stdout=stream,
            stderr=stream,
            check=False,
        )
    wall_s = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 1, 5):  # a verdict is an answer, too
        raise subprocess.CalledProcessError(done.returncode, command, log.read_text()[-2000:])
    used_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": round(wall_s, 3), "processor_s": round(used_s, 3)}


class Optcli:
    """Builds of one recipe by one revision of optcli."""

    def __init__(self, name: str, source: Path, recipe: Path, scratch: Path, options: Sequence[str]):
        self.name, self._source, self._recipe = name, source, recipe
        self._folder, self._options = scratch / name, options
        self._folder.mkdir()

    def build(self, kind: str) -> dict[str, Any]:
        """Times of one build, with the seconds of phases and steps where it is cold."""
        store, laid_out = self._folder / "store", self._folder / "artifacts"
        if kind == "cold":
            shutil.rmtree(store, ignore_errors=True)
        if kind in ("cold", "cached"):
            shutil.rmtree(laid_out, ignore_errors=True)
        command = [sys.executable, "-m", "optcli", "build", str(self._recipe), *self._options]
        command += ["--store", str(store), "--artifacts", str(laid_out)]
        command += ["--remeasure"] if kind == "measured" else []
        log = self._folder / f"{kind}.log"
        found: dict[str, Any] = timed(command, self._folder, log, PYTHONPATH=str(self._source))
        if kind == "cold":
            report = json.loads(next(laid_out.glob("*/report.json")).read_text())
            found["phases_s"], found["steps_s"] = report["took_s"], steps_of(report)
        return found


def steps_of(report: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of each step that a build carried out, by variant and name."""
    found: dict[str, float] = {}
    for name, variant in report["variants"].items():
        for step in variant["steps"]:
            if step.get("seconds") is not None:
                label = (
                    step["name"] if step["name"].startswith("source") else f"{name} › {step['name']}"
                )
                found[label] = step["seconds"]
    return found


class Olive:
    """Runs of one workflow of Olive's, named after its file; it is not told to measure again."""

    def __init__(self, python: str, config: Path) -> None:
        self._python, self._config = python, config.resolve()
        self.name = config.stem

    def build(self, kind: str) -> dict[str, Any] | None:
        """Times of one run, cold or all of it cached."""
        folder = self._config.parent
        settings = json.loads(self._config.read_text())
        places = [settings.get(key) or settings.get("engine", {}).get(key) for key in _FOLDERS]
        if kind not in ("cold", "cached"):
            return None
        for place in filter(None, places if kind == "cold" else places[1:]):
            shutil.rmtree(folder / place, ignore_errors=True)
        command = [self._python, "-m", "olive", "run", "--config", str(self._config)]
        return timed(command, folder, folder / f"{kind}.log", CI="1", OLIVE_DISABLE_TELEMETRY="1")


_FOLDERS = ("cache_dir", "output_dir")


def peers(python: str, configs: Sequence[Path], scratch: Path) -> list[Olive]:
    """Olive, where it can be had; says so where not. The folder of each configuration is copied."""
    if subprocess.run([python, "-c", _HAS_OLIVE], check=False).returncode:
        print(f"Olive is not importable by {python}: optcli is timed alone")
        return []
    copies = [shutil.copytree(each.resolve().parent, scratch / f"of-{each.stem}") for each in configs]
    return [Olive(python, copy / each.name) for copy, each in zip(copies, configs, strict=True)]


def medians(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Medians over the rounds, by who and kind of build."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for who in dict.fromkeys(run["who"] for run in runs):
        for kind in KINDS:
            mine = [run for run in runs if (run["who"], run["kind"]) == (who, kind)]
            if mine:
                found.setdefault(who, {})[kind] = {
                    unit: round(median(run[unit] for run in mine), 2)
                    for unit in ("wall_s", "processor_s")
                }
    return found


def shares(runs: Sequence[Mapping[str, Any]], part: str) -> dict[str, dict[str, float]]:
    """Medians of the seconds of phases, or of steps, of the cold builds by who."""
    found: dict[str, dict[str, float]] = {}
    for who in dict.fromkeys(run["who"] for run in runs if part in run):
        mine = [run[part] for run in runs if run["who"] == who and part in run]
        names = dict.fromkeys(name for each in mine for name in each)
        found[who] = {
            name: round(median(each[name] for each in mine if name in each), 2) for name in names
        }
    return found


def printed(found: Mapping[str, Any]) -> None:
    """The medians, and ratios of wall times to those of everybody else who takes part."""
    print(f"{'':24}" + "".join(f"{kind:>18}" for kind in KINDS))
    by_who = found["medians"]
    for who, kinds in by_who.items():
        for unit in ("wall_s", "processor_s"):
            row = "".join(
                f"{kinds[kind][unit]:>18.2f}" if kind in kinds else f"{'-':>18}" for kind in KINDS
            )
            print(f"{who + ' ' + unit:24}{row}")
    for who, other in combinations(by_who, 2):
        kinds, others = by_who[who], by_who[other]
        ratios = (
            f"{kind} {kinds[kind]['wall_s'] / others[kind]['wall_s']:.2f}"
            for kind in kinds
            if kind in others
        )
        print(f"{who} / {other}: {', '.join(ratios)}")
    for part in ("phases_s", "steps_s"):
        for who, parts in found[part].items():
            print(
                f"{who} cold, {part}: {', '.join(f'{name} {value}' for name, value in parts.items())}"
            )


def main() -> None:
    """Time all rounds, print and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--recipe", type=Path, help="another recipe")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], help="as of optcli build"
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--beside", type=Path, help="the folder of another revision, timed in turns")
    parser.add_argument("--peer-python", default=sys.executable, help="an interpreter that has Olive")
    parser.add_argument(
        "--peer-config", type=Path, nargs="+", default=PEER_CONFIGS, help="Olive's configurations"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        recipe = given.recipe.resolve() if given.recipe else prepared(scratch)
        options = [word for override in given.overrides for word in ("--set", override)]
        who: list[Optcli | Olive] = [Optcli("optcli", ROOT, recipe, scratch, options)]
        if given.beside:
            who.append(Optcli("beside", given.beside.resolve(), recipe, scratch, options))
        if given.recipe is None or given.peer_config != PEER_CONFIGS:  # else it would be other work
            who += peers(given.peer_python, given.peer_config, scratch)
        for root in filter(None, (ROOT, given.beside)):  # as installing does, of Olive as of optcli
            compileall.compile_dir(root / "optcli", quiet=1)
        for number in range(given.rounds):
            turns = who if number % 2 == 0 else who[::-1]
            for kind in (kind for kind in KINDS if kind in given.kinds):
                for each in turns:
                    took = each.build(kind)
                    if took is not None:
                        runs.append({"round": number, "who": each.name, "kind": kind, **took})
                        print(f"round {number}: {each.name} {kind} {took['wall_s']:.2f} s", flush=True)
    packages = ("torch", "torchvision", "onnx", "onnxruntime", "optcli")
    found = {
        "recipe": str(given.recipe) if given.recipe else RECIPE,
        "overrides": given.overrides,
        "machine": environment.describe(packages),
        "medians": medians(runs),
        "phases_s": shares(runs, "phases_s"),
        "steps_s": shares(runs, "steps_s"),
        "runs": runs,
    }
    printed(found)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
