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

A run counts where it ended well and left a new model, one in INT8 where its workflow quantizes. A peer
that failed is named with the end of what it printed; it takes no further part and has no figures (null
in the file). The script then ends with 1, and so it does where a build of optcli failed, at once.
"""

from __future__ import annotations

import argparse
import compileall
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import checked
from checked import NotDoneError, Wanted

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
# What a build of it lays out.
INT8 = "cold-build/int8/model.onnx"
KINDS = ("cold", "measured", "cached", "no-op")
UNITS = ("wall_s", "processor_s")
_HAS_OLIVE = "import importlib.util, sys; sys.exit(importlib.util.find_spec('olive') is None)"


def prepared(folder: Path) -> Path:
    """The recipe of the usual work and its images, in a folder."""
    import numpy as np

    images = np.random.default_rng(0).standard_normal((IMAGES, 3, 224, 224), dtype=np.float32)
    np.savez(folder / "images.npz", image=images)
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE)
    return recipe


class Optcli:
    """Builds of one recipe by one revision of optcli; `int8` is a model that has to be laid out."""

    def __init__(
        self,
        name: str,
        source: Path,
        recipe: Path,
        scratch: Path,
        options: Sequence[str],
        int8: str | None,
    ) -> None:
        self.name, self._source, self._recipe, self._int8 = name, source, recipe, int8
        self._folder, self._options = scratch / name, options
        self._folder.mkdir()

    def build(self, kind: str) -> dict[str, Any]:
        """Times of one build, with the seconds of phases and steps where it is cold.

        Raises NotDoneError where it did not write its report, or has no INT8 where that is the work.
        """
        store, laid_out = self._folder / "store", self._folder / "artifacts"
        if kind == "cold":
            shutil.rmtree(store, ignore_errors=True)
        if kind in ("cold", "cached"):
            shutil.rmtree(laid_out, ignore_errors=True)
        command = [sys.executable, "-m", "optcli", "build", str(self._recipe), *self._options]
        command += ["--store", str(store), "--artifacts", str(laid_out)]
        command += ["--remeasure"] if kind == "measured" else []
        done = checked.run(
            self.name,
            command,
            wanted=checked.report_of(laid_out),
            fine=checked.VERDICTS,
            keep=self._folder / f"{kind}.log",
            cwd=self._folder,
            env={**os.environ, "PYTHONPATH": str(self._source)},
        )
        found: dict[str, Any] = {unit: getattr(done, unit) for unit in UNITS}
        if self._int8 is not None:
            self._check(laid_out / self._int8)
        if kind == "cold":
            report = json.loads(next(laid_out.glob("*/report.json")).read_text())
            found["phases_s"], found["steps_s"] = report["took_s"], steps_of(report)
        return found

    def _check(self, path: Path) -> None:
        try:
            checked.model(path, quantized=True)
        except ValueError as error:
            raise NotDoneError(self.name, f"laid out {path}, but {error}") from None


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
        """Times of one run, cold or from its cache. Raises NotDoneError where it left no new model."""
        if kind not in ("cold", "cached"):
            return None
        folder = self._config.parent
        settings = json.loads(self._config.read_text())
        cache, out = (settings.get(key) or settings.get("engine", {}).get(key) for key in _FOLDERS)
        if not out:
            raise NotDoneError(self.name, f"has no output_dir in {self._config.name}")
        for place in (out, cache if kind == "cold" else None):
            if place:
                shutil.rmtree(folder / place, ignore_errors=True)
        quantizes = any("Quant" in each["type"] for each in settings.get("passes", {}).values())
        done = checked.run(
            self.name,
            [self._python, "-m", "olive", "run", "--config", str(self._config)],
            wanted=Wanted(folder / out, "*.onnx", partial(checked.model, quantized=quantizes)),
            keep=folder / f"{kind}.log",
            cwd=folder,
            env={**os.environ, "CI": "1", "OLIVE_DISABLE_TELEMETRY": "1"},
        )
        return {unit: getattr(done, unit) for unit in UNITS}


_FOLDERS = ("cache_dir", "output_dir")


def peers(python: str, configs: Sequence[Path], scratch: Path) -> list[Olive]:
    """Olive, where it can be had; says so where not. The folder of each configuration is copied."""
    if subprocess.run([python, "-c", _HAS_OLIVE], check=False).returncode:
        print(f"Olive is not importable by {python}: optcli is timed alone")
        return []
    copies = [shutil.copytree(each.resolve().parent, scratch / f"of-{each.stem}") for each in configs]
    return [Olive(python, copy / each.name) for copy, each in zip(copies, configs, strict=True)]


def rounds_of(
    who: Sequence[Optcli | Olive], rounds: int, kinds: Sequence[str]
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """All runs, and why a peer failed: it takes no further part, since its cache is not what it was.

    Raises NotDoneError where a build of optcli failed: that is no benchmark then.
    """
    runs: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    for number in range(rounds):
        turns = who if number % 2 == 0 else who[::-1]
        for kind in (kind for kind in KINDS if kind in kinds):
            for each in (each for each in turns if each.name not in failed):
                run: dict[str, Any] = {"round": number, "who": each.name, "kind": kind}
                try:
                    took = each.build(kind)
                except NotDoneError as error:
                    if isinstance(each, Optcli):
                        raise
                    failed[each.name] = f"{kind}, round {number}: {error}"
                    runs.append({**run, **dict.fromkeys(UNITS), "failed": str(error)})
                    print(f"round {number}: FAILED, {kind}: {error}", flush=True)
                    continue
                if took is not None:
                    runs.append({**run, **took})
                    print(f"round {number}: {each.name} {kind} {took['wall_s']:.2f} s", flush=True)
    return runs, failed


def medians(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Medians over the rounds, by who and kind of build; None for whoever failed once."""
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    failed = {run["who"] for run in runs if "failed" in run}
    for who in dict.fromkeys(run["who"] for run in runs):
        for kind in KINDS:
            mine = [run for run in runs if (run["who"], run["kind"]) == (who, kind)]
            if mine:
                found.setdefault(who, {})[kind] = {
                    unit: None if who in failed else round(median(run[unit] for run in mine), 2)
                    for unit in UNITS
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
        for unit in UNITS:
            values = [kinds.get(kind, {}).get(unit) for kind in KINDS]
            row = "".join(f"{'-':>18}" if value is None else f"{value:>18.2f}" for value in values)
            print(f"{who + ' ' + unit:24}{row}")
    for who, other in combinations([who for who in by_who if who not in found["failed"]], 2):
        kinds, others = by_who[who], by_who[other]
        ratios = (
            f"{kind} {kinds[kind]['wall_s'] / others[kind]['wall_s']:.2f}"
            for kind in kinds
            if kind in others
        )
        print(f"{who} / {other}: {', '.join(ratios)}")
    for who, reason in found["failed"].items():
        print(f"{who} FAILED and has no figures: {reason}")
    for part in ("phases_s", "steps_s"):
        for who, parts in found[part].items():
            print(
                f"{who} cold, {part}: {', '.join(f'{name} {value}' for name, value in parts.items())}"
            )


def main() -> int:
    """Time all rounds, print and write what was found; 1 where a peer failed."""
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
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        recipe = given.recipe.resolve() if given.recipe else prepared(scratch)
        int8 = None if given.recipe else INT8
        options = [word for override in given.overrides for word in ("--set", override)]
        who: list[Optcli | Olive] = [Optcli("optcli", ROOT, recipe, scratch, options, int8)]
        if given.beside:
            who.append(Optcli("beside", given.beside.resolve(), recipe, scratch, options, int8))
        if given.recipe is None or given.peer_config != PEER_CONFIGS:  # else it would be other work
            who += peers(given.peer_python, given.peer_config, scratch)
        for root in filter(None, (ROOT, given.beside)):  # as installing does, of Olive as of optcli
            compileall.compile_dir(root / "optcli", quiet=1)
        runs, failed = rounds_of(who, given.rounds, given.kinds)
    packages = ("torch", "torchvision", "onnx", "onnxruntime", "optcli")
    found = {
        "recipe": str(given.recipe) if given.recipe else RECIPE,
        "overrides": given.overrides,
        "machine": environment.describe(packages),
        "failed": failed,
        "medians": medians(runs),
        "phases_s": shares(runs, "phases_s"),
        "steps_s": shares(runs, "steps_s"),
        "runs": runs,
    }
    printed(found)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    checked.told(main)
