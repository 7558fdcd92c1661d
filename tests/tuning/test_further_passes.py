"""Passes that `tune.passes` adds: where each stands, and what is said of those that fit nowhere."""

from pathlib import Path
from typing import Any

import pytest
from tiny_project import DATA, write_images, write_recipe

from optcli import environment
from optcli.artifact import Format
from optcli.environment import Missing, Needs
from optcli.errors import OptcliError
from optcli.recipe import Recipe, load
from optcli.store import Store
from optcli.tuning import starting
from optcli.tuning.space import Space

TORCH = """\
version: 1
name: further
model: {source: "torchvision:resnet18"}
inputs:
  - {name: image, shape: [batch, 3, 64, 64], batch: {min: 1, opt: 2, max: 4}}
data:
  calibration: {source: "imagefolder:images"}
  training: {source: "imagefolder:images"}
variants:
  plain: []
"""
OWN = "plugins: [own.py:Mine]\ntune: {passes: {Mine: {}}}\n"
MINE = """\
from typing import ClassVar

from optcli.artifact import Format
from optcli.passes import Pass


class Mine(Pass):
    \"\"\"Changes nothing.\"\"\"

    accepts: ClassVar = (Format.ONNX,)
    strength: float = 0.1

    def produces(self, source):
        return source

    def run(self, source, job):
        raise NotImplementedError
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    write_images(tmp_path / "images")
    (tmp_path / "own.py").write_text(MINE)
    (tmp_path / "recipe.yaml").write_text(TORCH + OWN)
    return load(tmp_path / "recipe.yaml")


def passes_of(space: Space, runtime: str) -> list[str]:
    chosen = {"runtime": runtime, "precision": "fp32", "passes": {"Mine": {}}}
    return [name for name, _ in space.candidate(chosen).passes]


@pytest.mark.parametrize(
    ("reads", "runtime", "before"),
    [
        (Format.ONNX, "onnxruntime", ["export_onnx"]),
        (Format.OPENVINO, "openvino", ["export", "to_openvino"]),
        (Format.TORCH, "openvino", []),
        (Format.TORCH, "pytorch", []),
        (Format.ONNX, "pytorch", None),
    ],
)
def test_an_own_pass_stands_where_the_chain_has_a_format_that_it_reads(
    recipe: Recipe, reads: Format, runtime: str, before: list[str] | None
) -> None:
    names = passes_of(Space.of(recipe, {"Mine": (reads,)}), runtime)
    assert (names[: names.index("Mine")] if "Mine" in names else None) == before


def test_a_pass_that_fits_nowhere_is_said_and_not_drawn(recipe: Recipe) -> None:
    space = Space.of(recipe, {"Mine": (Format.TORCHSCRIPT,)})
    assert not space.further
    (said,) = [each for each in space.left_out if each.startswith("Mine")]
    assert said == (
        "Mine was not tried: it reads torchscript, and the search has torch, openvino, onnx."
    )


@pytest.mark.slow
def test_a_worker_reads_the_formats_of_an_own_pass(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(MINE)
    rest = "variants:\n  plain: []\nplugins: [own.py:Mine]\ntune: {passes: {Mine: {%s}}}\n"
    store = Store(tmp_path / "store")
    path = write_recipe(tmp_path, rest % "strength: [0.2, 0.3]", DATA)
    start = starting.started(path, ())
    starting.require_known(start.recipe)
    assert starting.formats_read(start, store) == {"Mine": (Format.ONNX,)}
    wrong = starting.started(write_recipe(tmp_path, rest % "strnght: [0.2]", DATA), ())
    with pytest.raises(OptcliError) as caught:
        starting.formats_read(wrong, store)
    assert "tune.passes" in str(caught.value)
    assert "strnght" in str(caught.value)


def test_what_a_runtime_or_a_training_lacks_is_said(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx = Space.of(load(write_recipe(tmp_path / "onnx")))
    assert "pytorch was not tried: the model comes as onnx." in onnx.left_out
    known = environment.missing

    def missing(needs: Needs) -> list[Missing]:
        lacks = Missing("the package nncf is not installed", "pip install nncf")
        return [*known(needs), *([lacks] if "nncf" in needs.packages else [])]

    assert Space.of(recipe, {"Mine": (Format.ONNX,)}).aware
    monkeypatch.setattr(environment, "missing", missing)
    without: Any = Space.of(recipe, {"Mine": (Format.ONNX,)})
    assert not without.aware
    said = "Quantization-aware training was not tried: the package nncf is not installed."
    assert said in without.left_out
