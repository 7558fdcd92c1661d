"""The same images and boxes in other layouts: from COCO's JSON to YOLO, Roboflow and Pascal VOC."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from PIL import Image


class Coco:
    """A data set in COCO's layout that is written anew in another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.record = json.loads((folder / "instances.json").read_text())
        self.categories = sorted(each["id"] for each in self.record["categories"])
        self.names = {each["id"]: each["name"] for each in self.record["categories"]}

    def images(self) -> Iterable[tuple[dict[str, Any], tuple[int, int], list[dict[str, Any]]]]:
        """Each image with its width and height and its annotations."""
        for image in self.record["images"]:
            boxes = [b for b in self.record["annotations"] if b["image_id"] == image["id"]]
            with Image.open(self.folder / "images" / image["file_name"]) as opened:
                yield image, opened.size, boxes

    def to_yolo(self, out: Path) -> Path:
        """`images/val`, `labels/val` and `data.yaml`; crowds are left out, as Ultralytics does."""
        for image, (width, height), boxes in self.images():
            lines = []
            for box in boxes:
                left, top, wide, high = box["bbox"]
                number = self.categories.index(box["category_id"])
                values = (
                    (left + wide / 2) / width, (top + high / 2) / height, wide / width, high / height
                )  # fmt: skip
                if not box.get("iscrowd"):
                    lines.append(" ".join([str(number), *(f"{value:.17g}" for value in values)]))
            self._copy(image, out / "images" / "val")
            labels = out / "labels" / "val" / image["file_name"]
            labels.parent.mkdir(parents=True, exist_ok=True)
            if lines:
                labels.with_suffix(".txt").write_text("\n".join(lines))
        names = [self.names[number] for number in self.categories]
        file = out / "data.yaml"
        file.write_text(f"path: .\nval: images/val\nnc: {len(names)}\nnames: {json.dumps(names)}\n")
        return file

    def to_roboflow(self, out: Path) -> Path:
        """`valid/_annotations.coco.json` beside its images."""
        for image in self.record["images"]:
            self._copy(image, out / "valid")
        (out / "valid" / "_annotations.coco.json").write_text(json.dumps(self.record))
        return out

    def to_voc(self, out: Path) -> Path:
        """`Annotations`, `JPEGImages` and `ImageSets/Main/val.txt`: pixels from 1, crowds difficult."""
        names = []
        for image, (width, height), boxes in self.images():
            objects = []
            for box in boxes:
                left, top, wide, high = box["bbox"]
                sides = {"xmin": left + 1, "ymin": top + 1, "xmax": left + wide, "ymax": top + high}
                inner = "".join(f"<{key}>{value!r}</{key}>" for key, value in sides.items())
                objects.append(
                    f"<object><name>{self.names[box['category_id']]}</name>"
                    f"<difficult>{int(bool(box.get('iscrowd')))}</difficult><bndbox>{inner}</bndbox></object>"
                )
            self._copy(image, out / "JPEGImages")
            stem = Path(image["file_name"]).stem
            names.append(stem)
            size = f"<size><width>{width}</width><height>{height}</height><depth>3</depth></size>"
            (out / "Annotations").mkdir(exist_ok=True)
            text = f"<annotation><filename>{image['file_name']}</filename>{size}{''.join(objects)}"
            (out / "Annotations" / f"{stem}.xml").write_text(f"{text}</annotation>")
        (out / "ImageSets" / "Main").mkdir(parents=True)
        (out / "ImageSets" / "Main" / "val.txt").write_text("\n".join(names))
        return out

    def _copy(self, image: dict[str, Any], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.folder / "images" / image["file_name"], folder)
