"""How many broken detectors are accepted without labels, and how many honest ones are not.

    python benchmarks/output_mutations.py COCO FOLDER... [--count 200] [--honest 60] [--seed 0]

Each FOLDER is what `detector_layouts.py` has built: quantized models of YOLOX in several layouts, and
their mAP. COCO is the folder that it evaluated on. Honest are the FP16 and BF16 models, and the INT8
ones that lose at most a point of mAP: each is run on all or on 30 images, and judged as a build judges
it. Where there are too few, the nodes of another layout stand behind the rows of one.

Broken are INT8 models of the layout `yolox` with nodes behind their rows: a class zeroed, scores
scaled, boxes shifted by 2 % of the picture or resized, coordinates or outputs swapped, classes
permuted, everything rounded on one scale. Any layout's nodes follow. A mutation counts if it changes
5 % of the confident detections of the baseline, or their scores by 10 %, on the images that are drawn.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import openvino
from detector_layouts import CLASSES, GRID, LAYOUTS, PREPARE, SIZE, VARIANTS, Graph
from onnx import helper

from optcli import accuracy, data, outputs
from optcli.accuracy import decoding, detections, process, shards
from optcli.accuracy.evaluation import Evaluation
from optcli.accuracy.metrics import Predictions
from optcli.accuracy.parts import CONFIDENT
from optcli.accuracy.verdicts import verdicts
from optcli.data import DataSettings
from optcli.errors import InputError
from optcli.results.outcomes import Accuracy, Verdict
from optcli.settings import TensorSpec
from optcli.settings.postprocess import PostprocessSettings

STEP = SIZE / 255  # of 8 bits over a range of boxes
POINT = 0.01  # of mAP: what an honest INT8 model may lose
LEAST_SCORE = 0.01  # of a detection, as the recipes say
FLOATS = ("fp16", "bf16", "openvino", "openvino-fp16")
MUTATIONS = (
    "class zeroed",
    "scores scaled",
    "boxes shifted",
    "boxes resized",
    "swapped",
    "permuted",
    "one scale",
)
Call = dict[str, np.ndarray]


@dataclass(frozen=True)
class Image:
    """An evaluation image: the model's input `[1, 3, height, width]`, and how it was prepared."""

    name: str
    pixels: np.ndarray
    meta: Mapping[str, Any]


@dataclass(frozen=True)
class Built:
    """A model of a build: its file, and the points of mAP that it loses."""

    layout: str
    name: str
    folder: Path
    file: Path
    lost: float

    @property
    def honest(self) -> bool:
        """Whether it is as good as its baseline, by what made it and by labels."""
        return self.name in FLOATS or self.lost <= POINT


def images_of(coco: Path) -> list[Image]:
    """All images, prepared as the recipes prepare them."""
    spec = TensorSpec(name="images", shape=(1, 3, SIZE, SIZE))
    settings = DataSettings.model_validate({"source": f"coco:{coco.resolve()}", "prepare": PREPARE})
    samples = data.open(settings, Path.cwd(), (spec,))
    read = (samples[index] for index in range(len(samples)))
    return [
        Image(str(each.id), each.inputs["images"][None].astype(np.float32), each.meta) for each in read
    ]


def built(folder: Path) -> list[Built]:
    """The models that were built in a folder."""
    found = []
    for report in sorted(folder.glob("artifacts/*/report.json")):
        for name, variant in json.loads(report.read_text())["variants"].items():
            place = report.parent / name
            files = [*place.glob("*.onnx"), *place.glob("*.xml")]
            judged = variant["accuracy"]
            if name in VARIANTS and files and judged is not None and judged["value"] is not None:
                lost = judged["baseline"] - judged["value"]
                found.append(Built(report.parent.name, name, folder, files[0], lost))
    return found


def model_of(file: Path | bytes) -> Callable[[np.ndarray], Call]:
    """A model as a function of its input."""
    if isinstance(file, Path) and file.suffix == ".xml":
        precise = {"INFERENCE_PRECISION_HINT": "f32"}
        compiled = openvino.Core().compile_model(str(file), "CPU", precise)
        names = [port.any_name for port in compiled.outputs]
        return lambda x: dict(zip(names, map(np.array, compiled(x).values()), strict=True))
    opened = file if isinstance(file, bytes) else str(file)
    session = onnxruntime.InferenceSession(opened, providers=["CPUExecutionProvider"])
    taken, given = session.get_inputs()[0], [each.name for each in session.get_outputs()]
    kind = np.float16 if "float16" in taken.type else np.float32
    return lambda x: dict(zip(given, session.run(None, {taken.name: x.astype(kind)}), strict=True))


def evaluation(layout: str, images: Sequence[Image], calls: Sequence[Call], out: Path) -> Evaluation:
    """What a build keeps of a model that gives these outputs."""
    post = PostprocessSettings.model_validate(LAYOUTS[layout][1])
    assert post.detector is not None
    detector = decoding.Detector(*post.detector, CLASSES, refuse=False)
    whole = frozenset(calls[0]) if layout == "torchvision" else frozenset()
    count = len(calls)
    part = shards.SpanCollector(
        out / "part-0", range(count), count, None, shards.BYTES_BESIDE_DETECTIONS
    )
    part.begin(1, calls[0], whole)
    for index, (image, call) in enumerate(zip(images, calls, strict=True)):
        seen = Predictions((image.name,), (None,), (image.meta,), call, None, None, whole)
        seen = replace(seen, decoded=decoding.decode(detector, seen, (SIZE, SIZE)))
        part.add(seen, detections.records(seen.decoded), np.array([[index]], np.uint8))
    part.write({}, None, detector.noted)
    process.merge(out, 1, None, None, {"runner": "onnxruntime", "guessed": False})
    return Evaluation.load(out)


def mutate(
    graph: Graph,
    kind: str,
    layout: str,
    random: np.random.Generator,
    classes: np.ndarray,
    p: np.ndarray,
) -> Callable[[Call], Call]:
    """Add nodes with one thing wrong behind a graph's rows; and what is wrong behind the layout."""
    count = 5 + CLASSES
    scaled, added = np.ones(count, np.float32), np.zeros((1, len(GRID[0]), count), np.float32)
    order, rename = np.arange(count), False
    if kind == "class zeroed":
        scaled[5 + random.choice(classes, p=p)] = 0
    elif kind == "scores scaled":
        scaled[5:] = random.choice([0.5, 0.6, 0.7, 0.8, 0.85, 1.2, 1.5])
    elif kind == "boxes shifted":
        added[0, :, random.integers(2)] = 0.02 * SIZE * random.choice([-1, 1]) / GRID[1][:, 0]
    elif kind == "boxes resized":
        added[..., 2:4] = np.log(random.choice([0.6, 0.8, 1.3, 1.6]))
    elif kind == "permuted":
        some = random.choice(classes, min(len(classes), random.choice([2, 3, 20])), replace=False)
        order[5 + some] = 5 + np.roll(some, 1)
    elif kind == "swapped":
        rename = layout in ("rtdetr", "torchvision") and bool(random.integers(2))
        order[:4] = order[:4] if rename else [1, 0, 3, 2]
    if kind == "one scale":
        # Where boxes are, rows hold cells and logarithms of sizes: a step in cells of 8 pixels.
        step = np.where(np.arange(count) < 4, STEP / 8, STEP).astype(np.float32)
        steps = graph.add("Add", graph.add("Div", graph.rows, step), np.float32(0.5))
        graph.rows = graph.add("Mul", graph.add("Floor", steps), step)
    else:
        most = np.where(np.arange(count) < 5, np.inf, 1).astype(np.float32)
        moved = graph.add("Add", graph.add("Mul", graph.rows, scaled), added)
        graph.rows = graph.add("Gather", graph.add("Min", moved, most), order, axis=2)
    return _swapped if rename else lambda call: call


def _swapped(call: Call) -> Call:
    """Two outputs under each other's name."""
    first, second, *_ = call
    renamed = {first: second, second: first}
    return {name: call[renamed.get(name, name)] for name in call}


def head() -> onnx.ModelProto:
    """A model that gives its input, YOLOX's rows: what stands in place of a network."""
    shape = (1, len(GRID[0]), 5 + CLASSES)
    ends = (helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, shape) for n in ("in", "rows"))
    taken, given = ends
    node = helper.make_node("Identity", ["in"], ["rows"])
    graph = helper.make_graph([node], "head", [taken], [given])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=6)


def changed(found: Accuracy) -> tuple[float, float]:
    """The share of the baseline's confident detections that is lost, and how far scores moved."""
    change = found.output_error.detections if found.output_error else None
    if change is None:
        return 1.0, 0.0
    return 1 - change.same / max(1, change.confident), abs((change.score_ratio or 0.0) - 1)


class Judging:
    """Models of a build, what they give for the images, and the choices of a seed."""

    def __init__(self, images: Sequence[Image], models: Sequence[Built], seed: int) -> None:
        self.images, self.models = images, models
        self.random = np.random.default_rng(seed)
        self.answers = cache(self._answers)
        self.base = cache(self._base)
        self.classes = cache(self._classes)

    def _answers(self, file: Path) -> list[Call]:
        model = model_of(file)
        return [model(each.pixels) for each in self.images]

    def _base(self, layout: str) -> list[Call]:
        """The answers of the network in fp32, in a layout."""
        plain = next(each for each in self.models if (each.layout, each.name) == ("yolox", "fp32"))
        return self.behind(plain, Graph(head()), layout, range(len(self.images)))

    def _classes(self, body: Built) -> tuple[np.ndarray, np.ndarray]:
        """Classes that have a large score in the rows of a network, and how often as a share."""
        rows = np.concatenate([next(iter(call.values())) for call in self.answers(body.file)])
        scores = rows[..., 4:5] * rows[..., 5:]
        sure = scores.max(-1) > CONFIDENT
        classes, counts = np.unique(scores.argmax(-1)[sure], return_counts=True)
        return classes, counts / counts.sum()

    def behind(self, body: Built, graph: Graph, layout: str, chosen: Sequence[int]) -> list[Call]:
        """What the nodes of a layout give, behind a graph that reads the rows of a network."""
        run = model_of(LAYOUTS[layout][0](graph).SerializeToString())
        calls = self.answers(body.file)
        return [run(next(iter(calls[index].values()))) for index in chosen]

    def choose(self, count: int) -> list[int]:
        """Some images."""
        return sorted(self.random.choice(len(self.images), count, replace=False).tolist())

    def judge(
        self, layout: str, chosen: Sequence[int], mine: Sequence[Call]
    ) -> tuple[Verdict, Accuracy]:
        """The verdict on outputs without labels. Raises `InputError` for what is not decoded."""
        theirs = [self.base(layout)[index] for index in chosen]
        with tempfile.TemporaryDirectory() as name:
            both = [
                evaluation(layout, [self.images[i] for i in chosen], calls, Path(name) / side)
                for side, calls in (("mine", mine), ("theirs", theirs))
            ]
            post = PostprocessSettings.model_validate(LAYOUTS[layout][1])
            meanings = outputs.describe(both[1].outputs, postprocess=post)
            found = accuracy.compare(both[0], both[1], meanings=meanings, score=LEAST_SCORE)
            (verdict,) = (each for each in verdicts(found, None) if each.name == "outputs")
            return verdict, found

    def honest(self, count: int) -> tuple[int, int]:
        """How many honest models are not accepted, each is printed; and how many there were."""
        honest = [each for each in self.models if each.name != "fp32" and each.honest]
        pairs = [(each, each.layout) for each in honest]
        bodies = [each for each in honest if each.layout == "yolox"]
        pairs = [pairs[index] for index in self.random.permutation(len(pairs))]
        pairs += [(body, layout) for layout in list(LAYOUTS)[1:] for body in bodies]
        doubted = judged = 0
        for model, layout in pairs:
            if judged == count:
                break
            chosen = self.choose(int(self.random.choice([30, len(self.images)])))
            if layout == model.layout:
                mine = [self.answers(model.file)[index] for index in chosen]
            else:
                mine = self.behind(model, Graph(head()), layout, chosen)
            verdict, found = self.judge(layout, chosen, mine)
            about = f"{model.folder.name} {model.name} as {layout}, {len(chosen)} images"
            lost, moved = changed(found)
            judged += 1
            if verdict.outcome != "accept":
                doubted += 1
                print(
                    f"not accepted: {about}: {lost:.1%} lost, scores moved by {moved:.1%}", flush=True
                )
        return doubted, judged

    def broken(self, count: int) -> tuple[Counter[str], Counter[str]]:
        """How many mutations counted and how many were accepted, by kind; each of these is printed."""
        random = self.random
        bodies = [
            each
            for each in self.models
            if each.layout == "yolox" and each.honest and each.name not in (*FLOATS, "fp32")
        ]
        counted, accepted, tried = Counter[str](), Counter[str](), 0
        while counted.total() < count and tried < 10 * count:
            kind = MUTATIONS[tried % len(MUTATIONS)]
            tried += 1
            body, layout = bodies[random.integers(len(bodies))], str(random.choice(list(LAYOUTS)))
            chosen = self.choose(int(random.choice([20, 40, 80])))
            classes, shares = self.classes(body)
            graph = Graph(head())
            last = mutate(graph, kind, layout, random, classes, shares)
            mine = [last(call) for call in self.behind(body, graph, layout, chosen)]
            about = f"{kind} of {body.folder.name} {body.name} as {layout}, {len(chosen)} images"
            try:
                verdict, found = self.judge(layout, chosen, mine)
            except InputError:  # a build ends so, and accepts nothing
                counted[kind] += 1
                continue
            lost, moved = changed(found)
            if lost < 0.05 and moved < 0.1:
                continue
            counted[kind] += 1
            if verdict.outcome == "accept":
                accepted[kind] += 1
                print(f"accepted: {about}: {lost:.1%} lost, scores moved by {moved:.1%}", flush=True)
        return counted, accepted


def main() -> int:
    """Read the command line, and print the counts and each wrong answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("coco", type=Path)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--honest", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    models = [each for folder in options.folders for each in built(folder)]
    judging = Judging(images_of(options.coco), models, options.seed)
    doubted, honest = judging.honest(options.honest)
    counted, accepted = judging.broken(options.count)
    print("| mutation | counted | accepted |\n| --- | ---: | ---: |")
    for kind in MUTATIONS:
        print(f"| {kind} | {counted[kind]} | {accepted[kind]} |")
    print(f"\n{accepted.total()} of {counted.total()} mutations accepted")
    print(f"{doubted} of {honest} honest ones not accepted")
    return 0


if __name__ == "__main__":
    sys.exit(main())
