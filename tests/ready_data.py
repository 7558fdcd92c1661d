"""Stand-ins for the data and models that the ready recipes name: enough to plan a build with."""

from __future__ import annotations

import json
from pathlib import Path

# The first of ImageNet's, as torchvision's weights name them.
_CLASSES = ("tench", "goldfish", "great white shark", "tiger shark", "hammerhead")


def write(folder: Path) -> dict[str, str]:
    """Write them; gives the environment variables by which the ready recipes find them."""
    images, coco = folder / "images", folder / "coco"
    for number in range(1000):
        image = images / _CLASSES[number % len(_CLASSES)] / f"{number}.jpg"
        image.parent.mkdir(parents=True, exist_ok=True)
        image.write_bytes(b"image %d" % number)
    entries = [{"id": number, "file_name": f"{number}.jpg"} for number in range(80)]
    (coco / "images").mkdir(parents=True)
    for entry in entries:
        (coco / "images" / str(entry["file_name"])).write_bytes(b"photo %d" % entry["id"])
    annotations = {"images": entries, "annotations": [], "categories": [{"id": 1, "name": "one"}]}
    (coco / "instances.json").write_text(json.dumps(annotations))
    _write_detector(folder / "detector.onnx")
    raw = folder / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    (raw / "train-images-idx3-ubyte").write_bytes(b"images")
    return {
        "IMAGES": str(images),
        "COCO": str(coco),
        "DETECTOR": str(folder / "detector.onnx"),
        "FASHION": str(folder),
    }


def _write_detector(path: Path) -> None:
    """Candidates of YOLOX of one class, for images of 416 x 416; they hold nothing."""
    import onnx
    from onnx import TensorProto, helper

    image = helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, 416, 416])
    output = helper.make_tensor_value_info("output", TensorProto.FLOAT, [1, 3549, 6])
    shape = helper.make_tensor("shape", TensorProto.INT64, [3], [1, 3549, 6])
    nothing = helper.make_node("ConstantOfShape", ["shape"], ["output"])
    graph = helper.make_graph([nothing], "detector", [image], [output], [shape])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
