"""Stand-ins for the data and models that the ready recipes name: enough to plan a build with."""

from __future__ import annotations

import json
from pathlib import Path


def write(folder: Path) -> dict[str, str]:
    """Write them; gives the environment variables by which the ready recipes find them."""
    images, coco = folder / "images", folder / "coco"
    for number in range(1000):
        image = images / f"class{number % 10}" / f"{number}.jpg"
        image.parent.mkdir(parents=True, exist_ok=True)
        image.write_bytes(b"image %d" % number)
    entries = [{"id": number, "file_name": f"{number}.jpg"} for number in range(80)]
    (coco / "images").mkdir(parents=True)
    for entry in entries:
        (coco / "images" / str(entry["file_name"])).write_bytes(b"photo %d" % entry["id"])
    annotations = {"images": entries, "annotations": [], "categories": [{"id": 1, "name": "one"}]}
    (coco / "instances.json").write_text(json.dumps(annotations))
    (folder / "detector.onnx").write_bytes(b"a detector")
    raw = folder / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    (raw / "train-images-idx3-ubyte").write_bytes(b"images")
    return {
        "IMAGES": str(images),
        "COCO": str(coco),
        "DETECTOR": str(folder / "detector.onnx"),
        "FASHION": str(folder),
    }
