"""Everything that needs a GPU, in one go: the tests marked `gpu`, then networks in every runtime.

    python benchmarks/gpu_check.py [--networks resnet50,vit_b_16] [--minutes 28]

Builds through optcli's own recipes, one after the other, and writes what is known after each step to
`benchmarks/results/gpu-DATE.json` and `.md`, since machines may vanish. Bars: FP16 TensorRT at least
2.5 times as fast as eager FP32 on ResNet-50 at batch size 8; every engine's device time within 3 % of
trtexec's, or of a bare loop's; outputs close to FP32's. Exit code 0 where all hold, 1 where one does
not, 5 where one could not be told, 2 for a part that does not exist, 3 where there is no GPU.
`--dry-run` goes the same way on the CPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY), str(Path(__file__).parent)]

import gpu_recipes  # noqa: E402
import gpu_results  # noqa: E402

from optcli import environment  # noqa: E402
from optcli.models.engines import child, driver  # noqa: E402

PACKAGES = ("torch", "torchvision", "onnx", "onnxruntime", "tensorrt", "tensorrt_rtx", "nncf", "numpy")
_NEEDED = ("pydantic", "click", "ruamel.yaml", "filelock", "numpy", "torch", "torchvision", "onnx")
PYTHON_310 = child.PYTHON
_TESTS_S, _STEP_S, _BARE_S = 420.0, 300, 120.0


def main() -> int:
    """Run the check; gives the exit code."""
    options = _options()
    if not options.dry_run and (reason := _absence()):
        sys.stderr.write(f"gpu-check cannot run here: {reason}\n")
        return 3
    if reason := _unknown_part(options):
        sys.stderr.write(f"{reason}\n")
        return 2
    check = Check(options)
    check.run()
    return check.exit_code


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--networks", help="some of them, by name, with commas; default: all")
    parser.add_argument("--minutes", type=float, default=28.0, help="begin nothing after so long")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "benchmarks" / "results")
    parser.add_argument(
        "--work", type=Path, help="recipes, store and logs; default: a temporary folder"
    )
    parser.add_argument("--shared", type=Path, default=REPOSITORY.parent / "shared",
                        help="folder with models/ and datasets/, where there is one")  # fmt: skip
    parser.add_argument("--stages", help="some of torch, tensorrt and more, with commas; default: all")
    parser.add_argument("--variants", help="some of the variants, by name, with commas; default: all")
    parser.add_argument("--jobs", type=int, help="steps of a build, and tests, side by side")
    parser.add_argument("--no-tests", action="store_true", help="leave the tests marked `gpu` out")
    parser.add_argument("--dry-run", action="store_true", help="a tiny network on the CPU")
    return parser.parse_args()


def _absence() -> str:
    """What is missing here, in one sentence; empty where nothing is."""
    if found := driver.absence():
        return f"{found.message}; {found.hint}" if found.hint else found.message
    for name in _NEEDED:
        try:
            importlib.import_module(name)
        except ImportError as error:
            return f"{name} cannot be imported ({error}): put it on PYTHONPATH"
    import torch

    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees none (built for CUDA {torch.version.cuda})"
    return ""


def _unknown_part(options: argparse.Namespace) -> str:
    """Which network, stage or variant was asked for that does not exist; empty where all do."""
    networks = gpu_recipes.networks(options.shared)
    stages = [pair for each in networks for pair in gpu_recipes.stages(each).items()]
    known = {
        "networks": {*(each.name for each in networks), *gpu_recipes.HALVES},
        "stages": {stage for stage, _ in stages},
        "variants": {name for _, names in stages for name in names},
    }
    for part, names in known.items():
        wanted = getattr(options, part)
        for name in wanted.split(",") if wanted else ():
            if name not in names:
                return f"--{part}: found {name!r}, wanted some of {', '.join(sorted(names))}"
    return ""


class Check:
    """One run: its options, its deadline and what was found so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options, self._began = options, time.monotonic()
        self._work = options.work or Path(tempfile.mkdtemp(prefix="optcli-gpu-check-"))
        self._work.mkdir(parents=True, exist_ok=True)
        self._file = options.out / f"gpu-{datetime.now(UTC):%Y-%m-%d}{'-dry' * options.dry_run}.json"
        self.found: dict[str, Any] = {
            "command": shlex.join([Path(sys.executable).name, *sys.argv]),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "gpu": _gpus(),
            "versions": {**environment.versions(PACKAGES), "python": platform.python_version(),
                         f"tensorrt by {PYTHON_310}": _other_tensorrt()},
            "tests": None,
            "networks": {},
        }  # fmt: skip

    @property
    def exit_code(self) -> int:
        """By the bars: 1 where one fails, 5 where one is not known, else 0."""
        if self._options.dry_run:
            return (
                0 if all(gpu_results.measured(each) for each in self.found["networks"].values()) else 1
            )
        outcomes = {bar["outcome"] for bar in gpu_results.bars(self.found)}
        return 1 if "fail" in outcomes else 5 if "unknown" in outcomes else 0

    def run(self) -> None:
        """All of it, as long as there is time."""
        self._keep()
        if not self._options.no_tests:
            self._tests()
        # What every network has in common comes first, however slow the first of them is.
        for late in (False, True):
            for network in self._networks():
                self._network(network, late=late)
        self._say(f"written to {self._file} and {self._file.with_suffix('.md').name}")

    def _networks(self) -> list[gpu_recipes.Network]:
        if self._options.dry_run:
            return [gpu_recipes.torch_network("tiny", 32, (1, 2))]
        return gpu_recipes.named(self._options.shared, self._options.networks)

    def _tests(self) -> None:
        if importlib.util.find_spec("pytest") is None:
            self.found["tests"] = {"exit_code": None, "summary": "pytest is not here"}
            return
        self._say("tests marked gpu")
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "tests/gpu"]
        if self._options.jobs and importlib.util.find_spec("xdist"):
            command += ["-n", str(self._options.jobs)]
        code, text = self._command(command, min(_TESTS_S, self._left_s()), "tests")
        lines = [line for line in text.splitlines() if line.strip()]
        self.found["tests"] = {"exit_code": code, "summary": lines[-1] if lines else "nothing was said"}
        self._keep()

    def _network(self, network: gpu_recipes.Network, *, late: bool) -> None:
        dry = self._options.dry_run
        recipe = self._work / f"{network.name}.yaml"
        if not late:
            gpu_recipes.write(network, self._work, dry=dry)
        rows = self.found["networks"].setdefault(network.name, {})
        for stage, variants in gpu_recipes.stages(network, dry=dry).items():
            variants = {name: each for name, each in variants.items() if self._is_wanted(stage, name)}
            if (stage in gpu_recipes.LATE) != late or not variants:
                continue
            if self._left_s() < 30:
                rows.update(
                    {name: {"note": "no time was left"} for name in variants if name not in rows}
                )
                continue
            self._say(f"{network.name}: {stage}")
            report = self._build(recipe, network, stage, list(variants))
            rows.update(gpu_results.rows(report, [gpu_recipes.BASELINE, *variants]))
            self._keep()
            for name in variants:
                if name.startswith(("trt-", "rtx-")) and self._left_s() > 30:
                    self._compare_alone(network, name, rows[name])
            self._keep()

    def _is_wanted(self, stage: str, variant: str) -> bool:
        pairs = ((self._options.stages, stage), (self._options.variants, variant))
        return all(not wanted or name in wanted.split(",") for wanted, name in pairs)

    def _build(
        self, recipe: Path, network: gpu_recipes.Network, stage: str, names: list[str]
    ) -> dict[str, Any]:
        """One build; its report, or why there is none."""
        artifacts = self._work / "artifacts"
        report = artifacts / f"gpu-check-{network.name}" / "report.json"
        report.unlink(missing_ok=True)
        command = [sys.executable, "-m", "optcli", "build", str(recipe), "--timeout", str(_STEP_S)]
        command += ["--store", str(self._work / "store"), "--artifacts", str(artifacts)]
        if self._options.jobs:
            command += ["--jobs", str(self._options.jobs)]
        for name in names:
            command += ["--only", name]
        code, text = self._command(command, self._left_s(), f"{network.name}-{stage}")
        if report.is_file():
            return dict(json.loads(report.read_text()))
        last = [line for line in text.splitlines() if line.strip()][-1:]
        return {"variants": {}, "reason": f"exit code {code}: {''.join(last)}"}

    def _compare_alone(self, network: gpu_recipes.Network, name: str, row: dict[str, Any]) -> None:
        """Hold the engine's device time against trtexec's, or a bare loop's."""
        folder = self._work / "artifacts" / f"gpu-check-{network.name}" / name
        plan, size = folder / "model.plan", min(8, max(network.batch_sizes))
        if not plan.is_file() or gpu_results.p50(row, size, "device") is None:
            return
        product = "tensorrt_rtx" if name.startswith("rtx-") else "tensorrt"
        python = os.environ.get(PYTHON_310) if product == "tensorrt" else None
        if product == "tensorrt" and not python and shutil.which("trtexec"):
            shape = f"{network.input}:{size}x3x{network.size}x{network.size}"
            command = ["trtexec", f"--loadEngine={plan}", f"--shapes={shape}", "--useCudaGraph"]
            command += ["--noDataTransfers", "--useSpinWait"]
        else:
            loop = Path(__file__).with_name("gpu_bare_loop.py")
            command = [python or sys.executable, str(loop), str(plan), str(size), product]
        limit_s = min(_BARE_S, self._left_s())
        log = f"{network.name}-{name}-alone"
        # Another interpreter must not get this one's packages.
        code, text = self._command(command, limit_s, log, child.environment(python))
        row["alone"] = {"batch_size": size, **gpu_results.alone(code, text)}
        if "failed" in row["alone"]:
            told = "{failed}; the last that it printed:\n{printed}".format(**row["alone"])
            self._say(f"{command[0]} for {network.name} {name} {told}")

    def _command(
        self,
        command: list[str],
        timeout_s: float,
        log: str,
        variables: Mapping[str, str] = os.environ,
    ) -> tuple[int | None, str]:
        """Run it; gives exit code (None: out of time) and what it said, which is kept in a log, too."""
        paths = [str(REPOSITORY), variables.get("PYTHONPATH", "")]
        variables = {**variables, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        file = self._work / f"{log}.log"
        with file.open("w") as out:
            try:
                done = subprocess.run(
                    command, cwd=REPOSITORY, env=variables, stdin=subprocess.DEVNULL, stdout=out,
                    stderr=subprocess.STDOUT, timeout=max(1.0, timeout_s), check=False,
                )  # fmt: skip
                code: int | None = done.returncode
            except subprocess.TimeoutExpired:
                code = None
        return code, file.read_text(errors="replace")

    def _left_s(self) -> float:
        return self._options.minutes * 60 - (time.monotonic() - self._began)

    def _keep(self) -> None:
        self.found["minutes"] = round((time.monotonic() - self._began) / 60, 1)
        gpu_results.write(self.found, self._file)

    def _say(self, text: str) -> None:
        sys.stderr.write(f"[{(time.monotonic() - self._began) / 60:5.1f} min] {text}\n")


def _gpus() -> list[dict[str, Any]]:
    if driver.absence():
        return []
    return [
        {"name": one.name, "compute_capability": one.compute_capability, "driver": one.driver,
         "cuda": one.cuda, "memory_bytes": one.memory_bytes}
        for one in driver.devices()
    ]  # fmt: skip


def _other_tensorrt() -> str | None:
    """The version of TensorRT in the other interpreter, None where none is named."""
    python = os.environ.get(PYTHON_310)
    if not python:
        return None
    code = "import tensorrt; print(tensorrt.__version__)"
    variables = child.environment(python)
    try:
        done = subprocess.run(
            [python, "-c", code], env=variables, capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"does not start: {error}"
    return done.stdout.strip() or f"cannot be imported: {done.stderr.strip().splitlines()[-1:]}"


if __name__ == "__main__":
    sys.exit(main())
