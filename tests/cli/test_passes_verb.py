"""`optcli passes`: the example that it shows of each pass is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from optcli import passes
from optcli.cli.passes import example
from optcli.recipe import load

HEAD = """\
version: 1
name: x
model: {source: "python:net.py:make"}
inputs: [{name: x, shape: [batch, 4]}]
data:
  calibration: {source: "npz:a.npz"}
  training: {source: "npz:a.npz"}
  validation: {source: "npz:a.npz"}
"""


@pytest.mark.parametrize("name", passes.own_names())
def test_the_example_of_a_pass_loads(name, tmp_path: Path, optcli):
    import zipfile

    said = optcli("passes", name)
    assert said.code == 0, said.err
    assert "\nmakes:  " in said.out
    shown = said.out.partition("\nin a recipe:\n")[2]
    lines = [line.removeprefix("  ") for line in shown.splitlines()]
    assert lines[0].startswith("variants:")
    (tmp_path / "net.py").write_text("def make():\n    pass\n")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", b"")
    (tmp_path / "recipe.yaml").write_text(HEAD + "\n".join(lines) + "\n")
    # What the formats' default runner cannot run is no matter here: the chain up to the pass is.
    variant = load(tmp_path / "recipe.yaml").variants[name]
    assert variant.passes[-1].name == name
    kind = passes.find(name)
    assert all(role in lines[0] for role in kind.uses)


def test_the_list_says_what_each_makes(optcli):
    said = optcli("passes")
    assert "reads torch to onnx, exported to onnx" in said.out


def test_an_example_of_a_pass_of_ones_own():
    about = {"reads": ["onnx"], "uses": [], "example": {"limit": "0.5"}}
    assert example("./mine.py:Clip", about) == [
        "variants:",
        '  Clip: [export_onnx, {"./mine.py:Clip": {limit: 0.5}}]',
    ]
