"""What packing weights once is worth to AOTInductor: run by hand, results in benchmarks/README.md.

    .venv/bin/python benchmarks/aot_shapes.py --work FOLDER [--network resnet50] [--kinds int8 fp32]

Compiles a network of torchvision with random weights, as it is and quantized by `quantize_pt2e`, for
batch sizes 1 to 16: by AOTInductor as it is (`hand`), by the pass with `shapes: dynamic`, `static` and
`auto`, and by hand for one batch size alone (`hand-1`, `hand-8`). Then times them in turns at batch 1
and 8, and says how many weights each packs on every call. What is in FOLDER already is taken from it.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import checked
import numpy as np

from optcli.artifact import Artifact, Format
from optcli.environment import usable_cores
from optcli.formats.weight_packing import Packed, packed_each_call
from optcli.observer import Silent
from optcli.passes import Job
from optcli.passes.aot_inductor import AotInductor
from optcli.passes.quantize_pt2e import QuantizePt2e
from optcli.runners.aoti import AotiRunner
from optcli.sample import Sample
from optcli.settings import TensorSpec

SIZES = (1, 8)
WAYS = ("hand", "dynamic", "static", "auto", "hand-1", "hand-8")
INPUTS = (
    TensorSpec.model_validate(
        {"name": "image", "shape": ["batch", 3, 224, 224], "batch": {"min": 1, "opt": 8, "max": 16}}
    ),
)


class Noise:
    """Samples to calibrate on."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Sample:
        return Sample(str(index), {"image": image(1, index)[0]})


def image(size: int, seed: int = 0) -> np.ndarray:
    """A batch of images."""
    return np.random.default_rng(seed).standard_normal((size, 3, 224, 224)).astype(np.float32)


def job(source: Artifact, out: Path) -> Job:
    """A job that writes into a new folder."""
    out.mkdir(parents=True)
    return Job(
        out=out,
        inputs=INPUTS,
        origin=source,
        observer=Silent(),
        calibration=Noise(),
        threads=usable_cores(),
        batch_sizes=SIZES,
    )


def program(network: str, kind: str, work: Path) -> Artifact:
    """The exported program of a network with random weights."""
    import torch
    import torchvision

    from optcli.formats import exported
    from optcli.passes._torch.tracing import trace

    facts = {"outputs": ["output"]}
    plain = Artifact("", Format.EXPORTED, work / f"{network}-fp32", "fp32", 0, "", facts)
    if not plain.path.exists():
        torch.manual_seed(0)
        model = getattr(torchvision.models, network)(weights=None).eval()
        exported.save(trace(model, job(plain, plain.path), strict=True), plain.path)
    if kind == "fp32":
        return plain
    made = Artifact("", Format.EXPORTED, work / f"{network}-int8", "int8", 0, "", facts)
    if not made.path.exists():
        QuantizePt2e(strict=True).run(plain, job(plain, made.path))
    return made


def by_hand(source: Artifact, out: Path, size: int | None) -> dict[str, Any]:
    """AOTInductor as it is, for any batch size or for one."""
    import torch

    from optcli.formats import aoti, exported
    from optcli.passes._torch.fixed_batch import fixed

    work = job(source, out)
    found = exported.open(source.path)
    found = found if size is None else fixed(found, work, size)
    with torch.no_grad():  # else it does not freeze
        torch._inductor.aoti_compile_and_package(
            found,
            package_path=str(out / aoti.FILE),
            inductor_configs={"freezing": True, "cpp.dynamic_threads": True, "compile_threads": 1},
        )
    return {}


def made(source: Artifact, way: str, out: Path) -> Artifact:
    """The package of one way, compiled unless it is there."""
    from optcli.formats import aoti

    record = out.with_suffix(".json")
    if not record.exists():
        start = time.perf_counter()
        if way.startswith("hand"):
            facts = by_hand(source, out, int(way.partition("-")[2] or 0) or None)
        else:
            facts = AotInductor(shapes=way).run(source, job(source, out)).facts
        checked.model(out / aoti.FILE, quantized=source.precision == "int8")
        size = sum(file.stat().st_size for file in out.iterdir())
        told = {"seconds": time.perf_counter() - start, "bytes": size, "facts": facts}
        record.write_text(json.dumps(told))
    told = json.loads(record.read_text())
    print(f"{out.name:<28} {told['seconds']:6.1f} s, {told['bytes'] / 1e6:6.1f} MB")
    facts = {"outputs": ["output"], **told["facts"]}
    return Artifact("", Format.AOTI, out, source.precision, 0, "", facts)


def packs(source: Artifact, runner: AotiRunner, size: int) -> Packed:
    """What a call packs."""
    from optcli.formats import exported

    feed = {"image": image(size)}
    return packed_each_call(lambda: runner.run(feed), exported.open(source.path)) or Packed()


def times_ms(runners: Mapping[str, AotiRunner], size: int) -> dict[str, list[float]]:
    """Calls of all, in turns in random order."""
    feed, found = {"image": image(size)}, {name: list[float]() for name in runners}
    for turn in range(6):
        for name in random.sample(list(runners), len(runners)):
            runners[name].run(feed)
            for _ in range(5 if turn else 1):
                start = time.perf_counter()
                runners[name].run(feed)
                found[name].append((time.perf_counter() - start) * 1e3)
    return {name: each[1:] for name, each in found.items()}


def main() -> None:
    """Compile, time, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--network", default="resnet50")
    parser.add_argument("--kinds", nargs="+", default=["int8", "fp32"])
    parser.add_argument("--ways", nargs="+", default=list(WAYS))
    asked = parser.parse_args()
    for kind in asked.kinds:
        source = program(asked.network, kind, asked.work)
        artifacts = {
            way: made(source, way, asked.work / f"{asked.network}-{kind}-{way}") for way in asked.ways
        }
        for size in SIZES:
            fitting = {
                way: AotiRunner(threads=usable_cores()).open(each, INPUTS)
                for way, each in artifacts.items()
                if way not in ("hand-1", "hand-8") or way == f"hand-{size}"
            }
            for way, each in times_ms(fitting, size).items():
                found = packs(source, fitting[way], size)
                print(
                    f"{kind} batch {size} {way:<8} p50 {statistics.median(each):8.2f} ms,"
                    f" {found.weights} weights ({found.share:.0%}) packed on every call"
                )


if __name__ == "__main__":
    main()
