"""A detector that takes the size of the original image, as the exports of RT-DETR and D-FINE do.

It finds the red rectangle of an image, and scales its box by the second input.
"""

import json
from pathlib import Path

import numpy as np

NAME, PIXELS = "orig_target_sizes", 16
# Height and width of each image, and its rectangle as left, top, right, bottom: all in whole cells.
IMAGES = [
    ((32, 48), (6, 4, 30, 20)),
    ((48, 16), (2, 12, 9, 33)),
    ((64, 64), (8, 16, 40, 60)),
    ((16, 80), (10, 2, 60, 14)),
]
RECIPE = """\
version: 1
name: sized
model: {{source: "onnx:model.onnx"}}
inputs:
  - {{name: images, dtype: float32, shape: [{rows}, 3, 16, 16]{span}}}
  - {{name: orig_target_sizes, dtype: int64, shape: {shape}, value: {value}{span}}}
data:
  evaluation:
    source: coco:set
    prepare: {{resize: [16, 16], interpolation: nearest, channel_order: rgb, scale: 1/255}}
postprocess: {{boxes: {{boxes: boxes, scores: scores, labels: labels}}}}
accuracy: {{metric: map, max_drop: 0.5}}
latency: {{launches: 1, rounds: 2, calls: 2, warmup: 1, max_seconds: 0.05, threads: 1}}
report: {{pictures: false}}
variants:
  plain: []
  optimized: [optimize_onnx]
"""


def write_model(
    path: Path, rows: int | str = "batch", *, whole: bool = False, name: str = NAME
) -> None:
    """The detector: sizes are width and height, `[rows, 2]`, or `[2]` where they are `whole`."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    node = helper.make_node
    steps = np.arange(PIXELS, dtype=np.float32)
    constants = {
        "red": np.array(0, np.int64),
        "half": np.array(0.5, np.float32),
        "one": np.array(1, np.float32),
        "up": (steps + 1) / PIXELS,
        "down": (PIXELS - steps) / PIXELS,
        "first": np.array([1], np.int64),
        "second": np.array([2], np.int64),
        "flat": np.array([-1, 2], np.int64),
        "share": np.array(0.9, np.float32),
        "none": np.array(0, np.float32),
    }
    nodes = [
        node("Gather", ["images", "red"], ["reds"], axis=1),
        node("Greater", ["reds", "half"], ["is_red"]),
        node("Cast", ["is_red"], ["mask"], to=TensorProto.FLOAT),
        node("ReduceMax", ["mask", "first"], ["columns"], keepdims=0),
        node("ReduceMax", ["mask", "second"], ["lines"], keepdims=0),
    ]
    for line, low, high in (("columns", "left", "right"), ("lines", "top", "bottom")):
        nodes += [
            node("Mul", [line, "up"], [f"{line}_up"]),
            node("ReduceMax", [f"{line}_up", "first"], [high], keepdims=1),
            node("Mul", [line, "down"], [f"{line}_down"]),
            node("ReduceMax", [f"{line}_down", "first"], [f"{low}_rest"], keepdims=1),
            node("Sub", ["one", f"{low}_rest"], [low]),
        ]
    nodes += [
        node("Concat", ["left", "top", "right", "bottom"], ["fractions"], axis=1),
        node("Cast", [name], ["sizes"], to=TensorProto.FLOAT),
        node("Reshape", ["sizes", "flat"], ["size_rows"]),
        node("Concat", ["size_rows", "size_rows"], ["factors"], axis=1),
        node("Mul", ["fractions", "factors"], ["pixels"]),
        node("Unsqueeze", ["pixels", "first"], ["boxes"]),
        node("ReduceMax", ["columns", "first"], ["found"], keepdims=1),
        node("Mul", ["found", "share"], ["scores"]),
        node("Mul", ["found", "none"], ["zeros"]),
        node("Cast", ["zeros"], ["labels"], to=TensorProto.INT64),
    ]
    kinds = {"boxes": TensorProto.FLOAT, "scores": TensorProto.FLOAT, "labels": TensorProto.INT64}
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "sized",
        [
            value("images", TensorProto.FLOAT, [rows, 3, PIXELS, PIXELS]),
            value(name, TensorProto.INT64, [2] if whole else [rows, 2]),
        ],
        [value(k, kind, [rows, 1, 4] if k == "boxes" else [rows, 1]) for k, kind in kinds.items()],
        [numpy_helper.from_array(array, key) for key, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)


def write_images(folder: Path) -> None:
    """The images with their annotations in COCO's format."""
    from PIL import Image

    (folder / "images").mkdir(parents=True)
    images, boxes = [], []
    for number, ((height, width), (left, top, right, bottom)) in enumerate(IMAGES, 1):
        pixels = np.zeros((height, width, 3), np.uint8)
        pixels[top:bottom, left:right, 0] = 255
        Image.fromarray(pixels).save(folder / "images" / f"{number}.png")
        images.append({"id": number, "file_name": f"{number}.png"})
        box = [left, top, right - left, bottom - top]
        boxes.append({"id": number, "image_id": number, "category_id": 1, "bbox": box})
    record = {"images": images, "annotations": boxes, "categories": [{"id": 1, "name": "red"}]}
    (folder / "instances.json").write_text(json.dumps(record))


def write_project(
    folder: Path,
    value: str = "original_size_wh",
    rows: int | str = "batch",
    *,
    whole: bool = False,
) -> Path:
    """A recipe about the detector and the images."""
    write_model(folder / "model.onnx", rows, whole=whole)
    write_images(folder / "set")
    span = ", batch: {min: 1, opt: 2, max: 4}" if rows == "batch" else ""
    text = RECIPE.format(rows=rows, span=span, shape="[2]" if whole else f"[{rows}, 2]", value=value)
    if whole:
        text = text.replace("value: " + value + span, "value: " + value)
    (folder / "recipe.yaml").write_text(text)
    return folder / "recipe.yaml"
