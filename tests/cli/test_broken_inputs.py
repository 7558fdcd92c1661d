# ruff: noqa: E501  (one thing broken, one row)
"""Models, data and passes that are broken: said clearly, with place and hint, and nothing is lost."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from tiny_project import DATA, HEAD, Project

NPZ = 'data: {evaluation: {source: "npz:rows.npz"}}\naccuracy: {metric: top1}\n'
PASS = """\
import os, sys
import numpy as np
from optcli.artifact import Format
from optcli.passes import Made, Pass
@TOP
class Mine(Pass):
    "Does something wrong."
    accepts = (Format.ONNX,)
    def produces(self, source):
        return source
    def run(self, source, job):
        (job.out / "model.onnx").write_bytes((source.path / "model.onnx").read_bytes())
        return Made()
"""


class Malicious:
    """What a pickle may hold: an order to run something."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {self.mark}",)


@dataclass(frozen=True)
class Broken:
    """What is broken, the exit code, and what is said on stderr: message, place, hint."""

    name: str
    by: Callable[[Project], object]
    says: tuple[str, ...]
    code: int = 2
    head: str = HEAD
    data: str = DATA
    variants: str = "  plain: []\n"


def model(change: Callable[[bytes], bytes]) -> Callable[[Project], object]:
    def by(project: Project) -> None:
        path = project.folder / "model.onnx"
        path.write_bytes(change(path.read_bytes()))

    return by


def graph(change: Callable[[object], object]) -> Callable[[Project], object]:
    def by(project: Project) -> None:
        import onnx

        found = onnx.load(project.folder / "model.onnx")
        change(found)
        (project.folder / "model.onnx").write_bytes(found.SerializeToString())

    return by


def nan_weight(found) -> None:
    from onnx import numpy_helper

    values = numpy_helper.to_array(found.graph.initializer[0]).copy()
    values[0] = np.nan
    found.graph.initializer[0].CopyFrom(numpy_helper.from_array(values, "weight"))


def nan_output(found) -> None:
    from onnx import helper

    found.graph.node[1].output[0] = "product"
    squared = [helper.make_node("Mul", ["product", "product"], ["square"])]
    negative = [helper.make_node("Neg", ["square"], ["negative"])]
    root = [helper.make_node("Sqrt", ["negative"], ["logits"])]
    found.graph.node.extend(squared + negative + root)


def external(location: str, link: bool = False) -> Callable[[Project], object]:
    def change(found) -> None:
        tensor = found.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = 1
        for key, value in (("location", location), ("offset", "0"), ("length", str(48 * 2 * 4))):
            entry = tensor.external_data.add()
            entry.key, entry.value = key, value

    def by(project: Project) -> None:
        graph(change)(project)
        secret = project.folder.parent / "secret.bin"
        secret.write_bytes(bytes(1000))
        if link:
            (project.folder / location).symlink_to(secret)

    return by


def images(change: Callable[[Path], object], which: slice = slice(None)) -> Callable[[Project], object]:
    def by(project: Project) -> None:
        for path in sorted((project.folder / "images").rglob("*.png"))[which]:
            change(path)

    return by


def grey(path: Path) -> None:
    from PIL import Image

    Image.open(path).convert("L").save(path)


def more_classes(project: Project) -> None:
    from PIL import Image

    for index in range(6):
        folder = project.folder / "images" / ("c", "d", "e")[index % 3]
        folder.mkdir(exist_ok=True)
        pixels = np.full((4, 4, 3), index, dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index}.png")


def no_images(project: Project) -> None:
    images(lambda path: path.unlink())(project)


def rows(**arrays: object) -> Callable[[Project], object]:
    return lambda project: np.savez(project.folder / "rows.npz", **arrays)


def pickled(project: Project) -> None:
    mark = project.folder / "CODE_RAN"
    rows(image=np.array([Malicious(mark)] * 4, dtype=object), target=np.zeros(4, int))(project)


def cut_rows(project: Project) -> None:
    rows(image=SAMPLES, target=LABELS)(project)
    path = project.folder / "rows.npz"
    path.write_bytes(path.read_bytes()[:1000])


def mine(top: str = "", **changes: str) -> Callable[[Project], object]:
    def by(project: Project) -> None:
        text = PASS.replace("@TOP", top)
        for old, new in changes.values():
            assert text.count(old) == 1
            text = text.replace(old, new)
        (project.folder / "mine.py").write_text(text)

    return by


USES_MINE = {"variants": '  plain: []\n  mine: ["./mine.py:Mine"]\n'}
SAMPLES = np.random.default_rng(0).random((8, 3, 4, 4))
LABELS = np.arange(8) % 2

TABLE = [
    Broken("truncated", model(lambda data: data[:150]), ("model.onnx: this is not an ONNX file", "copy")),
    Broken("text", model(lambda _: b"no model\n" * 9), ("model.onnx: this is not an ONNX file", "copy")),
    Broken("empty", model(lambda _: b""), ("recipe.yaml:3:17", "model.onnx is empty", "export")),
    Broken(
        "folder", lambda p: ((p.folder / "model.onnx").unlink(), (p.folder / "model.onnx").mkdir()),
        ("recipe.yaml:3:17", "is a folder, wanted a file", "name the file in it"),
    ),
    Broken("gone", lambda p: (p.folder / "model.onnx").unlink(), ("recipe.yaml:3:17", "there is no file")),
    Broken("NaN weights", graph(nan_weight), ("model.onnx: the weights hold NaN: weight, 2 of 96",)),
    Broken("NaN outputs", graph(nan_output), ("'logits' holds NaN or infinity", "look for NaN")),
    Broken("absolute", external("/etc/passwd"), ("outside the model's folder: '/etc/passwd'", "beside")),
    Broken("up", external("../secret.bin"), ("outside the model's folder: '../secret.bin'", "beside")),
    Broken("link", external("w.bin", link=True), ("outside the model's folder: 'w.bin'", "beside")),
    Broken("no data file", external("w.bin"), ("the weights file 'w.bin' is missing", "copy w.bin")),
    Broken(
        "input name", lambda _: None, ("the file has no input img", "paste this", "shape: [batch, 3, 4, 4]"),
        head=HEAD.replace("name: image", "name: img"),
    ),
    Broken("input type", lambda _: None, ("float32 in the file, float64 in the recipe", "paste this"),
           head=HEAD.replace("float32", "float64")),
    Broken("input channels", lambda _: None, ("(RGB), the model wants 1 channel", "channel_order: grey"),
           head=HEAD.replace("3, 4, 4", "1, 4, 4")),
    Broken("no images", no_images, ("recipe.yaml:8:25", "no images in images", ".png")),
    Broken("no folder", lambda p: shutil.rmtree(p.folder / "images"),
           ("recipe.yaml:8:25", "no such folder: images", "relative to the recipe")),
    Broken("grey", images(grey), (".png: the image has 1 channel (grey)", "channel_order: rgb")),
    Broken("cut image", images(lambda path: path.write_bytes(path.read_bytes()[:40]), slice(3, 4)),
           (".png: not a readable image", "replace the file")),
    Broken("labels", more_classes, ("the class 'c' of the calibration data is number 2, and the model has 2 classes", "labels:")),
    Broken("overlap", lambda _: None, ("evaluation and calibration share", "different splits"),
           data=DATA.replace("from: 0.5", "from: 0.2")),
    Broken("pickled rows", pickled, ("rows.npz: array 'image' is pickled", "plain numeric"), data=NPZ),
    Broken("cut rows", cut_rows, ("recipe.yaml:7:29", "not an npz file, or a damaged one"), data=NPZ),
    Broken("other array", rows(img=SAMPLES), ("rows.npz: no array 'image'", "'img'"), data=NPZ),
    Broken("no rows", rows(image=SAMPLES[:0], target=LABELS[:0]), ("no samples were found",), data=NPZ),
    Broken("no labels", rows(image=SAMPLES), ("top1 needs labels, and the evaluation set has none",),
           data=NPZ),
    Broken("NaN row", rows(image=SAMPLES * np.nan, target=LABELS), ("row 0", "not finite"), data=NPZ),
    Broken("pass exits", mine("sys.exit(0)"), ("mine.py:5", "ends the program when it is imported"),
           **USES_MINE),
    Broken("pass dies", mine("os._exit(0)"), ("recipe.yaml:13:10", "exit status 0", "log.txt"),
           **USES_MINE),
    Broken("pass raises", mine("1 / 0"), ("mine.py:5", "ZeroDivisionError"), **USES_MINE),
    Broken("pass syntax", mine("def f(:"), ("mine.py:5: syntax error", "def f(:"), **USES_MINE),
    Broken("no pass", mine(a=("(Pass)", "")), ("recipe.yaml:13:10", "is not a pass"), **USES_MINE),
    Broken("no run", mine(a=("def run(", "def go(")), ("Mine lacks run", "`run(source, job)`"), **USES_MINE),
    Broken("no format", mine(a=("return source", "return 'onxx'")), ("gives 'onxx'", "ONNX"), **USES_MINE),
    Broken("returns nothing", mine(a=("return Made()", "pass")), ("run() returned None, wanted a Made",),
           code=4, **USES_MINE),
    Broken("odd facts", mine(a=("Made()", "Made(facts={'a': np.float32(1)})")),
           ("the facts are not plain JSON data", "float32"), code=4, **USES_MINE),
    Broken("link written", mine(a=('(job.out / "model.onnx").write_bytes((source.path / "model.onnx")'
                                   ".read_bytes())",
                                   '(job.out / "model.onnx").symlink_to(source.path / "model.onnx")')),
           ("found model.onnx, which is a link", "write a copy"), code=4, **USES_MINE),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("broken", TABLE, ids=lambda broken: broken.name)
def test_it_is_said_clearly_and_nothing_is_lost(broken, place, optcli, nothing_lost):
    broken.by(place)
    place.recipe(broken.variants, head=broken.head, data=broken.data)
    said = optcli("build", "recipe.yaml")
    both = said.err + said.out  # a variant that failed has its hint in the report
    assert said.code == broken.code, both
    assert "Traceback" not in both
    assert "hint: " in both
    for text in broken.says:
        assert text in both
    assert not (place.folder / "CODE_RAN").exists()
    nothing_lost()


@pytest.mark.slow
def test_a_pass_that_prints_and_speaks_megabytes_does_no_harm(place, optcli, nothing_lost):
    talk = (
        "print('x' * 20_000_000, flush=True); "
        "job.warn('two\\nlines \\x1b[2J'); job.progress(0.5, 'w' * 100_000)\n        return Made()"
    )
    mine(a=("return Made()", talk))(place)
    place.recipe(USES_MINE["variants"], data=DATA)
    said = optcli("build", "recipe.yaml")
    assert said.code == 0, said.err
    assert "x" * 100 not in said.out + said.err
    assert "note    mine › ./mine.py:Mine: two\n          lines \n" in said.err
    nothing_lost()


NETWORK = """\
import os, sys
import torch
@TOP
class Net(torch.nn.Module):
    def __init__(self, num_classes=2):
        super().__init__()
        self.head = torch.nn.Linear(48, num_classes)
    def forward(self, image):
        return self.head(torch.flatten(image, 1))
"""
BY_PYTHON = HEAD.replace('"onnx:model.onnx"', '"python:net.py:Net"')


def network(top: str = "", text: str = NETWORK) -> Callable[[Project], object]:
    return lambda project: (project.folder / "net.py").write_text(text.replace("@TOP", top))


def weights(kind: str) -> Callable[[Project], object]:
    def by(project: Project) -> None:
        import torch

        network()(project)
        mark = project.folder / "CODE_RAN"
        state = {"head.weight": torch.zeros(5, 48), "head.bias": torch.zeros(5)}
        torch.save(state if kind == "classes" else {"head.weight": Malicious(mark)},
                   project.folder / "w.pth")  # fmt: skip

    return by


WEIGHTED = {"head": BY_PYTHON.replace('Net"', 'Net", weights: w.pth')}
NETWORKS = [
    Broken("raises", network("raise RuntimeError('no')"), ("net.py:3: importing", "RuntimeError: no")),
    Broken("exits", network("sys.exit(0)"), ("net.py:3", "ends the program when it is imported")),
    Broken("dies", network("os._exit(0)"), ("exit status 0", "log.txt"), code=4),
    Broken("dict", network(text="def Net():\n    return {'a': 1}\n"), ("a dict", "wanted an nn.Module")),
    Broken("prints", network("print('y' * 9_000_000); Net = None\nraise OSError(2, 'no', 'gone.txt')"),
           ("net.py:4", "gone.txt")),
    Broken("other classes", weights("classes"), ("w.pth", "num_classes: 5"), **WEIGHTED),
    Broken("pickled weights", weights("pickle"), ("w.pth", "can run code", "state_dict"), **WEIGHTED),
    Broken("weights folder", lambda p: (network()(p), (p.folder / "w.pth").mkdir()),
           ("recipe.yaml:3:47", "is a folder, wanted a file"), **WEIGHTED),
]  # fmt: skip


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("broken", NETWORKS, ids=lambda broken: broken.name)
def test_networks_in_python(broken, place, optcli, nothing_lost):
    head = broken.head if broken.head != HEAD else BY_PYTHON
    test_it_is_said_clearly_and_nothing_is_lost(
        Broken(broken.name, broken.by, broken.says, broken.code, head), place, optcli, nothing_lost
    )
