"""A tiny ONNX classifier, data for it, and a project of recipes about the two."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from optcli import environment
from optcli.environment import Needs
from optcli.pipeline.building import build
from optcli.pipeline.execute import BuildSettings
from optcli.results import Report
from optcli.runners.openvino import OpenvinoRunner

HEAD = """\
version: 1
name: tiny
model: {source: "onnx:model.onnx"}
inputs:
  - {name: image, dtype: float32, shape: [batch, 3, 4, 4], batch: {min: 1, opt: 2, max: 4}}
latency: {launches: 1, rounds: 2, calls: 2, warmup: 1, max_seconds: 0.05, threads: 1}
"""
DATA = """\
data:
  calibration: {source: "imagefolder:images", split: {seed: 0, to: 0.5}, prepare: {scale: 0.004}}
  evaluation: {source: "imagefolder:images", split: {seed: 0, from: 0.5}, prepare: {scale: 0.004}}
accuracy: {metric: top1, max_drop: 0.5}
"""
# The same, and nothing is evaluated.
CALIBRATION = "".join(DATA.splitlines(keepends=True)[:2])
PLAIN = "variants:\n  plain: []\n"


def build_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of `build`; the fields of `BuildSettings` among them become its `settings`."""
    names = {each.name for each in fields(BuildSettings)}
    own = {name: value for name, value in options.items() if name in names}
    others = {name: value for name, value in options.items() if name not in names}
    return {**others, "settings": BuildSettings(**own)}


def write_recipe(folder: Path, rest: str = PLAIN, data: str = DATA, head: str = HEAD) -> Path:
    """A recipe with the model and the images that it names; `rest` is what follows the data."""
    write_images(folder / "images")
    write_model(folder / "model.onnx")
    path = folder / "recipe.yaml"
    path.write_text(f"{head}{data}{rest}")
    return path


def write_model(path: Path, seed: int = 0, size: int = 4) -> None:
    """A linear classifier of inputs 3 x size x size into two classes."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight = weights(seed, size)
    graph = helper.make_graph(
        [
            helper.make_node("Flatten", ["image"], ["flat"]),
            helper.make_node("MatMul", ["flat", "weight"], ["logits"]),
        ],
        "tiny",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, size, size])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 2])],
        [numpy_helper.from_array(weight, "weight")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, path)


def weights(seed: int = 0, size: int = 4) -> np.ndarray:
    """Of the classifier: `[3 * size * size, 2]`."""
    return np.random.default_rng(seed).standard_normal((3 * size * size, 2)).astype(np.float32)


def write_images(folder: Path, count: int = 12, seed: int = 0) -> None:
    """Noise images in two classes, which the classifier of seed 0 tells apart."""
    from PIL import Image

    generator = np.random.default_rng(seed)
    first = np.sign(weights() @ np.array([1, -1])).reshape(3, 4, 4).transpose(1, 2, 0)
    for index in range(count):
        place = folder / ("a", "b")[index % 2]
        place.mkdir(parents=True, exist_ok=True)
        noise = generator.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        towards = first if index % 2 == 0 else -first
        pixels = (64 + noise // 2 + 63 * towards).astype(np.uint8)
        Image.fromarray(pixels).save(place / f"{index:02}.png")


@dataclass
class Project:
    """A folder with a model, data and a recipe, built with a store and artifacts of its own."""

    folder: Path
    store: Path
    artifacts: Path
    built: list[str] = field(default_factory=list)
    judged: list[str] = field(default_factory=list)
    measured: bool = False

    def recipe(self, variants: str, head: str = HEAD, data: str = "") -> Path:
        path = self.folder / "recipe.yaml"
        path.write_text(f"{head}{data}variants:\n{variants}")
        return path

    def build(self, **options: object) -> Report:
        """Build the recipe; `built` then holds the steps that ran, `judged` the accuracies found.

        `options` are those of `build`, and fields of `BuildSettings`.
        """
        heard = Heard()
        report = build(
            self.folder / "recipe.yaml",
            store=self.store,
            artifacts=self.artifacts,
            observer=heard,
            **build_options(options),
        )
        self.judged = [step for step in heard.built if step.endswith("accuracy")]
        self.measured = "latency" in heard.built
        done = {"latency", "data", *self.judged}
        self.built = [step for step in heard.built if step not in done]
        return report

    def store_of_calibration(self) -> str:
        """The path, below `images`, of one image that calibration reads."""
        from optcli.data import DataSettings, ingredients
        from optcli.files.digest import FileDigests

        record = {"source": "imagefolder:images", "split": {"seed": 0, "to": 0.5}}
        content = ingredients(DataSettings.model_validate(record), self.folder, FileDigests())[
            "content"
        ]
        return next(iter(content["files"]))


def project_in(place: Path, template: Path) -> Project:
    """A copy of a folder as a project, with a store and artifacts beside it."""
    shutil.copytree(template, place / "project")
    return Project(place / "project", place / "store", place / "artifacts")


class Heard:
    """An observer that remembers."""

    def __init__(self) -> None:
        self.built: list[str] = []
        self.notes: list[str] = []

    def started(self, step: str) -> None:
        pass

    def cached(self, step: str) -> None:
        pass

    def progress(self, step: str, fraction: float | None, message: str) -> None:
        pass

    def finished(self, step: str, seconds: float) -> None:
        self.built.append(step)

    def failed(self, step: str, reason: str) -> None:
        pass

    def warned(self, step: str, message: str) -> None:
        self.notes.append(message)


WITH_GPU = (
    '  plain: []\n  copied: ["./fakes.py:Copy"]\n'
    '  engine: {passes: ["./fakes.py:Copy"], runner: openvino}\n'
)


def want_a_gpu(project: Project, monkeypatch: Any) -> None:
    """A recipe of `WITH_GPU`; the runner of engine needs a GPU, and there is none."""
    monkeypatch.setattr(OpenvinoRunner, "needs", Needs(("openvino",), gpu=True))
    monkeypatch.setattr(environment, "has_gpu", lambda: False)
    project.recipe(WITH_GPU, data=DATA)
