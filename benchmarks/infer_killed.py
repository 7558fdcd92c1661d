"""`optcli infer` over 20,000 images, killed again and again, beside a run that nobody disturbs.

    .venv/bin/python benchmarks/infer_killed.py --shared FOLDER --work FOLDER [--images 20000]

The images are Fashion-MNIST's training images as PNGs, 50 of them damaged in five ways. Each attempt
gets a kill -9 ten seconds after its first finished shard, until one ends by itself. Then the answers
must be those of the undisturbed run, byte for byte: complete, each image once, the 50 in the files of
errors. No process of a killed attempt may be left 90 s later: Ray's agents wait a minute for the rest
of it before they end.

Prints what it found and writes it down. Ends with 1 where something differs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import checked
import psutil
from checked import NotDoneError

from optcli import environment

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "infer_killed.json"
_DAMAGED, _PER_SHARD = 50, 500
_MOST_ATTEMPTS, _TIMEOUT_S = 100, 3600.0
_ENDS_WITHIN_S = 90.0
_HEADER_BYTES = 16
_RECIPE = """\
version: 1
name: killed
model: {{source: "onnx:{model}"}}
inputs:
  - {{name: input, dtype: float32, shape: [batch, 3, 32, 32], batch: {{min: 1, opt: 8, max: 64}}}}
data:
  evaluation:
    source: "torchvision:FashionMNIST"
    root: "{datasets}"
    split: test
    samples: 16
    prepare:
      {{resize: 32, resize_in: float32, channel_order: rgb, scale: 1/255, mean: 0.2860, std: 0.3530}}
latency: {{mode: quick, batch_sizes: [1]}}
variants:
  served: []
"""


def main() -> None:
    """Build, answer undisturbed, answer with kills, compare."""
    given = _arguments()
    work, shared = given.work.absolute(), given.shared.absolute()
    work.mkdir(parents=True, exist_ok=True)
    images = work / "images"
    damaged = _stored(images, shared, given.images)
    recipe = work / "recipe.yaml"
    model = shared / "models" / "vit_tiny_fashion.onnx"
    recipe.write_text(_RECIPE.format(model=model, datasets=shared / "datasets"))
    checked.optcli("build", str(recipe), *_places(work), wanted=checked.report_of(work / "artifacts"))
    undisturbed = _undisturbed(work, images)
    attempts = _killed_until_done(work, images, given.after)
    found = {
        "command": f"benchmarks/infer_killed.py --shared FOLDER --work FOLDER --images {given.images}"
        f" --after {given.after:g}",
        "environment": environment.describe(("numpy", "pillow", "onnxruntime", "ray", "pyarrow")),
        "images": given.images,
        "undisturbed": {
            name: undisturbed[name] for name in ("answered", "failed", "shards", "seconds")
        },
        "attempts": attempts,
        "wrong": list(_wrong(work, given.images, damaged, attempts)),
    }
    given.results.parent.mkdir(parents=True, exist_ok=True)
    given.results.write_text(json.dumps(found, indent=1) + "\n")
    for attempt in attempts:
        end = f"killed {given.after:g} s after one more" if attempt["killed"] else "ended by itself"
        print(
            f"{attempt['shards_before']:3} shards were there, then {attempt['shards_after']:3}: {end}"
        )
    print("\n".join(found["wrong"]) or "the same as undisturbed")
    sys.exit(bool(found["wrong"]))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shared", type=Path, required=True, help="has models/ and datasets/")
    parser.add_argument("--work", type=Path, required=True, help="where everything is built")
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--after", type=float, default=10.0, help="seconds from a shard to the kill")
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args()


def _stored(folder: Path, shared: Path, count: int) -> list[str]:
    """The images in ten folders; gives the ids of those that are damaged."""
    import numpy as np
    from PIL import Image

    raw = shared / "datasets" / "FashionMNIST" / "raw" / "train-images-idx3-ubyte"
    pixels = np.frombuffer(raw.read_bytes(), np.uint8, offset=_HEADER_BYTES).reshape(-1, 28, 28)
    if folder.exists():
        shutil.rmtree(folder)
    every, damaged = max(1, count // _DAMAGED), []
    for number, each in enumerate(pixels[:count]):
        path = folder / str(number % 10) / f"{number:05d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(each).save(path)
        if number % every == every // 2 and len(damaged) < _DAMAGED:
            path.write_bytes(_damage(path.read_bytes(), len(damaged)))
            damaged.append(path.relative_to(folder).as_posix())
    return damaged


def _damage(content: bytes, way: int) -> bytes:
    """Nothing, text, the first half, a header alone, zeros in the middle."""
    half = len(content) // 2
    ways = (b"", b"not an image\n", content[:half], content[:24], content[:40] + b"\0" * half)
    return ways[way % len(ways)]


def _undisturbed(work: Path, images: Path) -> dict[str, Any]:
    target = work / "undisturbed"
    shutil.rmtree(target, ignore_errors=True)
    found: dict[str, Any] = checked.optcli_answer(
        *_infer(work, images, target),
        wanted=checked.Wanted(target, "part-*.parquet"),
        timeout=_TIMEOUT_S,
    )
    return found


def _killed_until_done(work: Path, images: Path, after_s: float) -> list[dict[str, Any]]:
    target = work / "killed"
    shutil.rmtree(target, ignore_errors=True)
    attempts: list[dict[str, Any]] = []
    while not attempts or attempts[-1]["killed"]:
        if len(attempts) == _MOST_ATTEMPTS:
            sys.exit(f"not done after {_MOST_ATTEMPTS} attempts")
        before, began = _finished(target), time.monotonic()
        with (work / f"attempt-{len(attempts)}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "optcli", *_infer(work, images, target)],
                stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": checked.path_of(ROOT)},
            )  # fmt: skip
            killed, left = _watched(process, target, before, after_s)
        attempts.append(
            {
                "shards_before": len(before),
                "shards_after": len(_finished(target)),
                "killed": killed,
                "seconds": round(time.monotonic() - began, 1),
                "left": left,
            }
        )
        if not killed and process.returncode:
            said = Path(log.name).read_text()
            raise NotDoneError("optcli infer", f"ended with {process.returncode}", said)
    return attempts


def _watched(
    process: subprocess.Popen[bytes], target: Path, before: set[str], after_s: float
) -> tuple[bool, list[str]]:
    """Whether it was killed, and which of its processes are there 90 s later."""
    kill_at = None
    until = time.monotonic() + _TIMEOUT_S
    while process.poll() is None and time.monotonic() < until:
        if kill_at is None and _finished(target) - before:
            kill_at = time.monotonic() + after_s
        if kill_at is not None and time.monotonic() >= kill_at:
            children = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGKILL)
            process.wait()
            _, alive = psutil.wait_procs(children, _ENDS_WITHIN_S)
            return True, [_told(each) for each in alive]
        time.sleep(0.05)
    if process.poll() is None:
        process.kill()
        sys.exit(f"infer did not end within {_TIMEOUT_S:.0f} s")
    return False, []


def _told(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:200]
    except psutil.Error:
        return str(process.pid)


def _finished(target: Path) -> set[str]:
    """The shards whose answers are there."""
    return {path.name for path in target.glob("part-*.parquet")}


def _wrong(work: Path, count: int, damaged: list[str], attempts: list[dict[str, Any]]) -> Iterator[str]:
    """What differs from what is wanted, a line each."""
    import pyarrow.parquet as parquet

    one, other = (_contents(work / name) for name in ("undisturbed", "killed"))
    for name in sorted(one.keys() ^ other.keys()):
        yield f"{name} is in one folder only"
    for name in sorted(one.keys() & other.keys()):
        if one[name] != other[name]:
            yield f"{name} differs"
    ids = [
        id
        for name in sorted(_finished(work / "killed"))
        for id in parquet.read_table(work / "killed" / name, columns=["id"])["id"].to_pylist()
    ]
    if len(set(ids)) != len(ids):
        yield f"{len(ids) - len(set(ids))} images were answered twice"
    if len(ids) != count - len(damaged):
        yield f"{len(ids)} images were answered, wanted {count - len(damaged)}"
    errors = sorted(
        json.loads(line)["id"]
        for path in (work / "killed").glob("*.errors.jsonl")
        for line in path.read_text().splitlines()
    )
    if errors != sorted(damaged):
        yield f"{len(errors)} errors are listed, wanted the {len(damaged)} damaged images"
    manifest = json.loads((work / "killed" / "manifest.json").read_text())
    if manifest["missing"]:
        yield f"the manifest misses {len(manifest['missing'])} shards"
    if not any(attempt["killed"] for attempt in attempts):
        yield "it was never killed: take more images"
    for attempt in attempts:
        yield from (f"left after a kill: {each}" for each in attempt["left"])


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _infer(work: Path, images: Path, target: Path) -> list[str]:
    return [
        *("infer", "served", str(work / "recipe.yaml"), *_places(work), "--json"),
        *("--input", str(images), "--output", str(target)),
        *("--shard", str(_PER_SHARD), "--batch-size", "32"),
    ]


def _places(work: Path) -> list[str]:
    return ["--store", str(work / "store"), "--artifacts", str(work / "artifacts")]


if __name__ == "__main__":
    checked.told(main)
