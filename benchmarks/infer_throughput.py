"""`optcli infer` in steady state beside the artifact's own batched throughput on the same cores.

    .venv/bin/python benchmarks/infer_throughput.py --shared FOLDER --work FOLDER [--cases A,B]

For each case: a build, stored images, then rounds of the model alone, preparing alone and `optcli
infer`, in turns. The model alone is a loop of the variant's own runner with its threads on batches of
real images, in a process of its own. Preparing alone is decoding and preparing of the same files by as
many threads, without a model. `infer` is the command as users call it; its rate is that from the end of
the first shard to the end of the last one, so that no start is in it.

The ratio is images/s of `infer` over those of the model alone, before and after it. Wanted is 0.9 where
`infer` does not name decoding as the limit. Decoding takes time of the same cores: `at_most` is the
ratio that is left if nothing but preparing and computing took any,
1 / (1 + model alone / preparing alone).

The machine must be idle. Results are written after each case. Ends with 1 where an aim is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import checked
from checked import NotDoneError

from optcli import environment

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "infer.json"
_WANTED = 0.9
# Shorter models are not judged, in ms an image: the aim is about models of at least that.
_LEAST_MS = 2.0
_SHARDS, _MOST_PER_SHARD = 10, 500
_TIMEOUT_S = 3600.0

_IMAGENET = "mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225]"
_BATCH = "batch: {min: 1, opt: 8, max: 64}"


@dataclass(frozen=True)
class Case:
    """A network, what a variant makes of it, and the stored images. `shared` stands for --shared."""

    model: str
    input: str
    prepare: str
    images: str
    passes: str = "[]"
    runner: str = "onnxruntime"


def _network(source: str, images: str, **more: str) -> Case:
    spec = f"{{name: image, dtype: float32, shape: [batch, 3, 224, 224], {_BATCH}}}"
    return Case(source, spec, f"{{crop: 224, scale: 1/255, {_IMAGENET}}}", images, **more)


# Photographs of 256 pixels for three networks of several sizes; small PNGs; photographs of 640 pixels.
CASES = {
    "resnet50": _network('"torchvision:resnet50"', "imagenet", passes="[export_onnx]"),
    "resnet50-openvino": _network(
        '"torchvision:resnet50"', "imagenet", passes="[export_onnx, to_openvino]", runner="openvino"
    ),
    "squeezenet": Case(
        '"onnx:shared/models/squeezenet1_1.onnx"',
        f"{{name: input, dtype: float32, shape: [batch, 3, 224, 224], {_BATCH}}}",
        f"{{crop: 224, scale: 1/255, {_IMAGENET}}}",
        "imagenet",
    ),
    "vit-tiny": Case(
        '"onnx:shared/models/vit_tiny_fashion.onnx"',
        f"{{name: input, dtype: float32, shape: [batch, 3, 32, 32], {_BATCH}}}",
        "{resize: 32, resize_in: float32, channel_order: rgb, scale: 1/255, mean: 0.2860, std: 0.3530}",
        "fashion",
    ),
    "resnet18-fashion": Case(
        '"torchvision:resnet18"',
        f"{{name: image, dtype: float32, shape: [batch, 3, 112, 112], {_BATCH}}}",
        "{resize: 112, channel_order: rgb, scale: 1/255, mean: 0.2860, std: 0.3530}",
        "fashion",
        passes="[export_onnx]",
    ),
    "yolox-nano": Case(
        '"onnx:shared/models/yolox_nano.onnx"',
        "{name: images, dtype: float32, shape: [1, 3, 416, 416]}",
        "{letterbox: {size: 416, fill: 114, align: top_left}, channel_order: bgr}",
        "coco",
    ),
}


@dataclass(frozen=True)
class Alone:
    """What is measured without the other: images/s, with batches of `batch_size` and `threads`."""

    report: str
    store: str
    images: str
    batch_size: int
    seconds: float


def main() -> None:
    """Build, measure in turns, compare; print a table and write the results."""
    given = _arguments()
    if given.alone:
        print(json.dumps(alone(Alone(**json.loads(given.alone)))))
        return
    rows: list[dict[str, Any]] = []
    for name in given.cases.split(","):
        rows.append(_of_case(name, given.shared.absolute(), given.work.absolute() / name, given))
        _write(rows, given)
        print(_line(rows[-1]), flush=True)
    missed = [row["case"] for row in rows if not _is_kept(row)]
    print(f"missed by {', '.join(missed)}" if missed else "the aim is met")
    sys.exit(bool(missed))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shared", type=Path, help="has models/ and datasets/")
    parser.add_argument("--work", type=Path, help="where everything is built")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=25.0, help="of one run of `infer`, about")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    given = parser.parse_args()
    unknown = set(given.cases.split(",")) - set(CASES)
    if not given.alone and (unknown or given.shared is None or given.work is None):
        parser.error(f"wanted --shared, --work and cases of {', '.join(CASES)}")
    return given


def _of_case(name: str, shared: Path, work: Path, given: argparse.Namespace) -> dict[str, Any]:
    report = _built(name, CASES[name], shared, work)
    sources = list(_sources(CASES[name].images, shared, work))
    few = _stored(work / "few", sources, 160)
    first = _infer(report, work, few, ["--shard", "40", "--restart"])
    size = first["batch_size"]
    asked = Alone(str(report), str(work / "store"), str(few), size, given.seconds / 4)
    rate = _alone(asked)["model_per_s"]
    count = max(_SHARDS * 8, round(rate * given.seconds))
    per_shard = max(1, min(_MOST_PER_SHARD, count // _SHARDS))
    images = _stored(work / "images", sources, count)
    rounds: list[dict[str, Any]] = []
    before = _alone(asked)
    for _ in range(given.rounds):
        found = _infer(
            report, work, images, ["--shard", str(per_shard), "--batch-size", str(size), "--restart"]
        )
        after = _alone(asked)
        model = (before["model_per_s"] + after["model_per_s"]) / 2
        preparing = (before["preparing_per_s"] + after["preparing_per_s"]) / 2
        rounds.append(
            {
                "infer_per_s": found["images_per_s"],
                "model_per_s": model,
                "preparing_per_s": preparing,
                "ratio": found["images_per_s"] / model,
                "at_most": 1 / (1 + model / preparing),
                **{key: found[key] for key in ("limit", "computed_share", "waited_share")},
                **{key: found[key] for key in ("prepared_share", "workers", "threads")},
            }
        )
        before = after
    return {
        "case": name,
        **asdict(CASES[name]),
        "batch_size": size,
        "images_a_run": count,
        "per_shard": per_shard,
        "ms_an_image": 1000 / median(one["model_per_s"] for one in rounds),
        "ratio": _spread([one["ratio"] for one in rounds]),
        "at_most": _spread([one["at_most"] for one in rounds]),
        "limits": sorted({one["limit"] for one in rounds}),
        "rounds": rounds,
    }


def _built(name: str, case: Case, shared: Path, work: Path) -> Path:
    """The report of a build."""
    work.mkdir(parents=True, exist_ok=True)
    data = {
        "imagenet": f'source: "imagefolder:{shared}/datasets/imagenet_1000/images"',
        "fashion": f'source: "torchvision:FashionMNIST", root: "{shared}/datasets", split: test',
        "coco": f'source: "coco:{shared}/datasets/coco_tiny_val"',
    }[case.images]
    (work / "recipe.yaml").write_text(
        f"version: 1\nname: {name}\n"
        f"model: {{source: {case.model.replace('shared', str(shared), 1)}}}\n"
        f"inputs:\n  - {case.input}\n"
        f"data:\n  evaluation: {{{data}, samples: 16, prepare: {case.prepare}}}\n"
        + ("postprocess: {yolox: {}}\naccuracy: {metric: map}\n" if case.images == "coco" else "")
        + "latency: {mode: quick, batch_sizes: [1]}\n"
        f"variants:\n  served: {{passes: {case.passes}, runner: {{name: {case.runner}}}}}\n"
    )
    wanted = checked.report_of(work / "artifacts")
    checked.optcli("build", str(work / "recipe.yaml"), *_places(work), wanted=wanted)
    return work / "artifacts" / name / "report.json"


def _places(work: Path) -> list[str]:
    return ["--store", str(work / "store"), "--artifacts", str(work / "artifacts")]


def _infer(report: Path, work: Path, images: Path, more: Sequence[str]) -> dict[str, Any]:
    command = ["infer", "served", str(work / "recipe.yaml"), *_places(work), "--json", *more]
    target = work / f"answers-{images.name}"
    where = ["--input", str(images), "--output", str(target)]
    found: dict[str, Any] = checked.optcli_answer(*command, *where, timeout=_TIMEOUT_S)
    if found["failed"]:
        raise NotDoneError("optcli infer", f"did not answer all images of {images}: {found}")
    checked.figures("optcli infer", found, "images_per_s")
    return found


def _sources(kind: str, shared: Path, work: Path) -> Iterator[Path]:
    """Image files of a data set, in a fixed order; Fashion-MNIST's test images become PNGs."""
    if kind != "fashion":
        folder = {"imagenet": "imagenet_1000/images", "coco": "coco_tiny_val/images"}[kind]
        yield from sorted((shared / "datasets" / folder).rglob("*.jp*g"), key=lambda path: path.name)
        return
    import numpy as np
    from PIL import Image

    pngs = work / "fashion"
    pngs.mkdir(exist_ok=True)
    raw = shared / "datasets" / "FashionMNIST" / "raw" / "t10k-images-idx3-ubyte"
    pixels = np.frombuffer(raw.read_bytes(), np.uint8, offset=16).reshape(-1, 28, 28)
    for number, each in enumerate(pixels):
        path = pngs / f"{number:05d}.png"
        if not path.exists():
            Image.fromarray(each).save(path)
        yield path


def _stored(folder: Path, sources: Sequence[Path], count: int) -> Path:
    """A folder of so many images: the sources again and again, each as a file of its own."""
    folder.mkdir(exist_ok=True)
    wanted = {f"{number:06d}{sources[number % len(sources)].suffix}": number for number in range(count)}
    for path in folder.iterdir():
        if path.name not in wanted:
            path.unlink()
    for name, number in wanted.items():
        if not (folder / name).exists():
            (folder / name).write_bytes(sources[number % len(sources)].read_bytes())
    return folder


def _alone(asked: Alone) -> dict[str, float]:
    """What a process of its own measures."""
    who = "the model alone"
    found: dict[str, float] = checked.answer(
        who,
        [sys.executable, str(Path(__file__).resolve()), "--alone", json.dumps(asdict(asked))],
        timeout=_TIMEOUT_S,
        env={**os.environ, "PYTHONPATH": checked.path_of(ROOT)},
    )
    checked.figures(who, found, "model_per_s", "preparing_per_s")
    return found


def alone(asked: Alone) -> dict[str, float]:
    """Images/s of the model without preparing, then of preparing without the model."""
    from optcli import runners
    from optcli.data.images import Images
    from optcli.model_files.built_variant import open_built
    from optcli.prediction.of_recipe import image_serving
    from optcli.results import Report
    from optcli.store import Store

    report = Path(asked.report)
    built = open_built(
        "served", Report.load(report), report, recipe=report.parents[2] / "recipe.yaml",
        store=Store(Path(asked.store)),
    )  # fmt: skip
    # Before the runtime is imported.
    os.environ.update(built.runner.environment())
    import numpy as np

    taking = Images(image_serving(built, (), raw=True).images)
    bodies = [path.read_bytes() for path in sorted(Path(asked.images).iterdir())]
    rows = [taking.prepared(body)[0] for body in bodies[: asked.batch_size]]
    feed = {taking.input: np.stack(rows)}
    kind = runners.find(built.runner_name)
    with kind.model_validate(built.options).open(built.artifact, built.inputs) as runner:
        for _ in range(3):
            runner.run(feed)
        calls, began = 0, time.perf_counter()
        while time.perf_counter() - began < asked.seconds:
            runner.run(feed)
            calls += 1
        model = calls * asked.batch_size / (time.perf_counter() - began)
    done, began = 0, time.perf_counter()
    with ThreadPoolExecutor(built.runner.thread_count()) as pool:
        while time.perf_counter() - began < asked.seconds / 2:
            done += sum(1 for _ in pool.map(taking.prepared, bodies))
    return {"model_per_s": model, "preparing_per_s": done / (time.perf_counter() - began)}


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": median(values), "least": min(values), "most": max(values)}


def _is_kept(row: dict[str, Any]) -> bool:
    """Whether the aim is met, or is not about this case."""
    if row["ms_an_image"] < _LEAST_MS or set(row["limits"]) <= {"preparing", "reading"}:
        return True
    return bool(row["ratio"]["median"] >= _WANTED)


def _line(row: dict[str, Any]) -> str:
    ratio, most = row["ratio"], row["at_most"]
    return (
        f"{row['case']:18} {row['ms_an_image']:6.2f} ms  batch {row['batch_size']:2}  ratio"
        f" {ratio['median']:.3f} ({ratio['least']:.3f} to {ratio['most']:.3f}), at most"
        f" {most['median']:.3f}; limit: {', '.join(row['limits'])}"
    )


def _write(rows: list[dict[str, Any]], given: argparse.Namespace) -> None:
    content = {
        "command": "benchmarks/infer_throughput.py --shared FOLDER --work FOLDER"
        f" --cases {given.cases} --rounds {given.rounds} --seconds {given.seconds:g}",
        "environment": environment.describe(("numpy", "pillow", "onnxruntime", "openvino", "ray")),
        "wanted": _WANTED,
        "cases": rows,
    }
    given.results.parent.mkdir(parents=True, exist_ok=True)
    given.results.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    checked.told(main)
