"""YOLOX in the layouts that other detectors have, and every quantizer on each of them.

    python benchmarks/detector_layouts.py DETECTOR.onnx COCO FOLDER [--layouts rows torchvision]

DETECTOR.onnx is YOLOX, which takes one image of [1, 3, 416, 416]; COCO is a folder in COCO's layout.
For each layout FOLDER gets an ONNX file, with the decoding as nodes of the graph, and a recipe, which
is built. Printed are mAP, the classes whose scores live, the verdicts and the ratio of speeds, all of
one run: on a busy machine the ratios are no measurement.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import yaml
from onnx import helper, numpy_helper

from optcli.outputs import postprocess
from optcli.pipeline.building import build
from optcli.results import VariantReport

CLASSES = 80
SIZE = 416
PREPARE = {"letterbox": {"size": SIZE, "fill": 114, "align": "top_left"}, "channel_order": "bgr"}
VARIANTS = {
    "fp32": [],
    "ort": ["quantize_onnxruntime"],
    "ort-all": [{"quantize_onnxruntime": {"least_layer_sqnr": None}}],
    "ort-percentile": [{"quantize_onnxruntime": {"method": "percentile"}}],
    "nncf": ["quantize_nncf"],
    "nncf-all": [{"quantize_nncf": {"least_layer_sqnr": None}}],
    "dynamic": ["quantize_dynamic"],
    "fp16": [{"convert_precision": {"precision": "fp16"}}],
    "bf16": [{"convert_precision": {"precision": "bf16"}}, "to_openvino"],
    "openvino": ["to_openvino"],
    "openvino-fp16": [{"convert_precision": {"precision": "fp16"}}, "to_openvino"],
    "openvino-nncf": ["to_openvino", "quantize_nncf"],
}

BRIEF = {"launches": 1, "rounds": 2, "calls": 2, "warmup": 1, "max_seconds": 0.5}


class Graph:
    """Nodes added behind a model's output."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model, self.graph = model, model.graph
        self.rows = self.graph.output[0].name
        self.graph.output.pop()

    def add(
        self, kind: str, *reads: str | np.ndarray | np.generic, to: str = "", **attributes: object
    ) -> str:
        """A node; arrays become initializers. Returns the name of what it gives."""
        names = []
        for value in reads:
            if not isinstance(value, str):
                tensor = numpy_helper.from_array(
                    np.asarray(value), f"constant_{len(self.graph.initializer)}"
                )
                self.graph.initializer.append(tensor)
                value = tensor.name
            names.append(value)
        name = to or f"added_{len(self.graph.node)}"
        self.graph.node.append(helper.make_node(kind, names, [name], name=name, **attributes))
        return name

    def cast(self, value: str) -> str:
        """A value as float32."""
        node = helper.make_node("Cast", [value], [f"{value}_float"], to=onnx.TensorProto.FLOAT)
        self.graph.node.append(node)
        return str(node.output[0])

    def columns(self, first: int, end: int) -> str:
        """Some columns of YOLOX's rows."""
        bounds = (np.array([each], np.int64) for each in (first, end, 2))
        return self.add("Slice", self.rows, *bounds)

    def decoded(self) -> tuple[str, str, str]:
        """Centres and sizes of boxes in pixels, and scores of classes, all [1, boxes, n]."""
        grid, stride = (np.asarray(each, np.float32) for each in GRID)
        placed = self.add("Add", self.columns(0, 2), grid.reshape(1, -1, 2))
        centres = self.add("Mul", placed, stride.reshape(1, -1, 1))
        sizes = self.add("Mul", self.add("Exp", self.columns(2, 4)), stride.reshape(1, -1, 1))
        scores = self.add("Mul", self.columns(4, 5), self.columns(5, 5 + CLASSES))
        return centres, sizes, scores

    def chosen(self, least_score: float) -> tuple[str, str, str]:
        """Boxes [n, 4] that are left after NMS, their scores [n] and classes [n]."""
        centres, sizes, scores = self.decoded()
        half = self.add("Mul", sizes, np.float32(0.5))
        ends = (self.add(kind, centres, half) for kind in ("Sub", "Add"))
        corners = self.add("Concat", *ends, axis=2)
        by_class = self.add("Transpose", scores, perm=[0, 2, 1])
        limits = (np.array([100], np.int64), *np.array([[0.65], [least_score]], np.float32))
        which = self.add("NonMaxSuppression", corners, by_class, *limits)  # image, class, box
        places = self.add("Gather", which, np.array([0, 2], np.int64), axis=1)
        classes = self.add("Gather", which, np.array(1, np.int64), axis=1)
        boxes = self.add("GatherND", corners, places)
        return boxes, self.add("GatherND", by_class, which), classes

    def gives(self, **outputs: tuple[int, tuple[int | str, ...]]) -> onnx.ModelProto:
        """The model with these outputs: types and shapes by name."""
        values = (helper.make_tensor_value_info(name, *each) for name, each in outputs.items())
        self.graph.output.extend(values)
        onnx.checker.check_model(self.model)
        return self.model


GRID = postprocess._grid((8, 16, 32), (SIZE, SIZE))


def yolox(graph: Graph) -> onnx.ModelProto:
    """The rows as they are."""
    if graph.rows != "output":
        graph.add("Identity", graph.rows, to="output")
    return graph.gives(output=(onnx.TensorProto.FLOAT, (1, GRID[0].shape[0], 5 + CLASSES)))


def rows(graph: Graph) -> onnx.ModelProto:
    """Rows of box, score and class, as exports with NMS give."""
    boxes, scores, classes = graph.chosen(0.01)
    last = np.array([1], np.int64)
    columns = (graph.add("Unsqueeze", each, axes=[1]) for each in (scores, graph.cast(classes)))
    joined = graph.add("Concat", boxes, *columns, axis=1)
    graph.add("Reshape", joined, np.array([*last, -1, 6], np.int64), to="detections")
    return graph.gives(detections=(onnx.TensorProto.FLOAT, (1, "rows", 6)))


def rtdetr(graph: Graph) -> onnx.ModelProto:
    """Logits and boxes in fractions of the picture, of the 300 best, as RT-DETR gives."""
    centres, sizes, scores = graph.decoded()
    boxes = graph.add("Concat", centres, sizes, axis=2)
    boxes = graph.add("Mul", boxes, np.float32(1 / SIZE))
    bounds = np.array([1e-6, 1 - 1e-6], np.float32)
    shares = graph.add("Clip", scores, bounds[0], bounds[1])
    odds = graph.add("Div", shares, graph.add("Sub", np.float32(1), shares))
    logits = graph.add("Log", odds)
    best = graph.add("ReduceMax", scores, axes=[2], keepdims=0)
    graph.graph.node.append(helper.make_node("TopK", [best, "count"], ["top", "places"], name="top"))
    graph.graph.initializer.append(numpy_helper.from_array(np.array([300], np.int64), "count"))
    places = graph.add("Unsqueeze", "places", axes=[2])
    for name, values, width in ("logits", logits, CLASSES), ("pred_boxes", boxes, 4):
        wide = graph.add("Expand", places, np.array([1, 300, width], np.int64))
        graph.add("GatherElements", values, wide, to=name, axis=1)
    float_ = onnx.TensorProto.FLOAT
    return graph.gives(logits=(float_, (1, 300, CLASSES)), pred_boxes=(float_, (1, 300, 4)))


def torchvision(graph: Graph) -> onnx.ModelProto:
    """Boxes, labels from 1 on and scores above a threshold, any number of them."""
    boxes, scores, classes = graph.chosen(0.05)
    graph.add("Identity", boxes, to="boxes")
    graph.add("Add", classes, np.array(1, np.int64), to="labels")
    graph.add("Identity", scores, to="scores")
    float_, int64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    return graph.gives(boxes=(float_, ("n", 4)), labels=(int64, ("n",)), scores=(float_, ("n",)))


LAYOUTS: dict[str, tuple[Callable[[Graph], onnx.ModelProto], dict[str, object]]] = {
    "yolox": (yolox, {"yolox": {}}),
    "rows": (rows, {"rows": {}}),
    "rtdetr": (
        rtdetr,
        {
            "boxes": {
                "boxes": "pred_boxes",
                "scores": "logits",
                "activation": "sigmoid",
                "format": "cxcywh",
                "normalized": True,
                "nms": 0.65,
            }
        },
    ),
    "torchvision": (
        torchvision,
        {"boxes": {"boxes": "boxes", "scores": "scores", "labels": "labels", "first_label": 1}},
    ),
}


def recipe(name: str, how: dict[str, object], options: argparse.Namespace) -> dict[str, object]:
    """A recipe of quantizers for one layout."""
    data = {"source": f"coco:{options.coco.resolve()}", "prepare": PREPARE}
    calibration = {**data, "split": {"seed": options.seed, "from": 0.0, "to": 0.25}}
    evaluation = {**data, "split": {"seed": options.seed, "from": 0.25, "to": 1.0}}
    if options.calibration is not None:
        calibration["source"] = f"imagefolder:{options.calibration.resolve()}"
        evaluation = data
    return {
        "version": 1,
        "name": name,
        "model": {"source": f"onnx:{name}.onnx"},
        "inputs": [{"name": "images", "dtype": "float32", "shape": [1, 3, SIZE, SIZE]}],
        "data": {
            "calibration": {**calibration, "samples": 20},
            "evaluation": {**evaluation, "samples": options.images},
        },
        "postprocess": how,
        **({} if options.no_labels else {"accuracy": {"metric": "map", "max_drop": 0.01}}),
        "latency": {
            "mode": "quick",
            "batch_sizes": [1],
            "threads": 1,
            **(BRIEF if options.brief else {}),
        },
        "variants": {key: {"passes": VARIANTS[key], "required": False} for key in options.variants},
    }


def row(layout: str, name: str, variant: VariantReport) -> str:
    """A line of the table."""
    accuracy = variant.accuracy
    value = "-" if accuracy is None or accuracy.value is None else f"{100 * accuracy.value:.1f}"
    verdicts = ", ".join(f"{each.name} {each.outcome}" for each in variant.verdicts)
    speedup = variant.latency[0].speedup if variant.latency else None
    ratio = "-" if speedup is None else f"{speedup.value:.2f}"
    said = (variant.reason or verdicts or variant.status).splitlines()[0]
    return f"| {layout} | {name} | {value} | {ratio} | {said} |"


def main() -> int:
    """Write files and recipes, build them and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("detector", type=Path)
    parser.add_argument("coco", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--images", type=int, default=60)
    parser.add_argument("--calibration", type=Path, help="images of classes; else a quarter of COCO")
    parser.add_argument("--seed", type=int, default=0, help="which images calibrate")
    parser.add_argument("--brief", action="store_true", help="hardly measure speed")
    parser.add_argument("--no-labels", action="store_true", help="compare detections, without mAP")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for name in options.layouts:
        made, how = LAYOUTS[name]
        onnx.save(made(Graph(onnx.load(options.detector))), options.folder / f"{name}.onnx")
        content = recipe(name, how, options)
        path = options.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(content, sort_keys=False))
        report = build(path, artifacts=options.folder / "artifacts")
        lines += [row(name, each, variant) for each, variant in report.variants.items()]
    print("| layout | variant | mAP in % | speed, fp32 = 1 | verdicts |")
    print("| --- | --- | ---: | ---: | --- |")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
