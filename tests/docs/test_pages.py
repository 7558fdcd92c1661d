"""docs/add-a-pass.md and docs/add-a-runner.md, followed to the letter."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

import pytest
from commands import hurried, optcli_here
from pages import Checkout, Page
from tiny_project import write_model


@pytest.fixture
def checkout(tmp_path):
    """A copy of the project with the model that the pages' recipes name."""
    write_model(tmp_path / "model.onnx", size=8)
    return Checkout(tmp_path)


def clipped(report) -> int:
    variant = report["variants"]["clipped"]
    assert variant["status"] == "built"
    return variant["steps"][-1]["facts"]["clipped_weights"]


@pytest.mark.slow
@pytest.mark.long
def test_a_pass_as_one_file(checkout):
    page = Page.read("add-a-pass.md")
    commands = ["optcli passes clip_weights", "optcli build clipped.yaml"]
    assert page.commands[:2] == commands
    checkout.add(page, "optcli/passes/clip_weights.py", "clipped.yaml")
    shown, built = (checkout.run(command) for command in commands)
    assert shown.code == 0, shown.err
    assert "Clip every weight to a limit" in shown.out
    assert (
        "limit  number, above 0 (default 1.0)\n       largest absolute value that is kept" in shown.out
    )
    assert built.code == 0, built.err
    assert clipped(checkout.report("clipped")) > 0
    about = checkout.folder / "artifacts" / "clipped" / "clipped" / "artifact.json"
    assert json.loads(about.read_text())["facts"]["clipped_weights"] > 0
    assert "clip_weights" in checkout.run("optcli passes").out
    (checkout.folder / "recipes" / "clipped.yaml").write_text(page.files["clipped.yaml"])
    checkout.generic_tests("passes/test_every_pass.py", "clip_weights")


@pytest.mark.slow
@pytest.mark.long
def test_a_pass_beside_the_recipe(tmp_path):
    page = Page.read("add-a-pass.md")
    write_model(tmp_path / "model.onnx", size=8)
    (tmp_path / "own-file.yaml").write_text(page.files["own-file.yaml"])
    own = tmp_path / "clip_weights.py"
    own.write_text(page.files["optcli/passes/clip_weights.py"])

    def run(command):
        words = hurried(shlex.split(command)[1:])
        return optcli_here(*words, folder=tmp_path, OPTCLI_STORE="")

    def report(name):
        return json.loads((tmp_path / "artifacts" / name / "report.json").read_text())

    shown, built = map(run, page.commands[2:])
    assert shown.code == 0, shown.err
    assert "largest absolute value" in shown.out
    assert built.code == 0, built.err
    first = clipped(report("own-file"))
    assert first > 0
    # `plugins:` names it once; the same code under another name is the same work.
    recipe = page.files["own-file.yaml"].replace('"./clip_weights.py:ClipWeights"', "clip")
    named = recipe.replace("variants:", 'plugins: {clip: "./clip_weights.py:ClipWeights"}\nvariants:')
    (tmp_path / "named.yaml").write_text(named.replace("name: own-file", "name: named"))
    built = run("optcli build named.yaml")
    assert built.code == 0, built.err
    assert report("named")["variants"]["clipped"]["status"] in ("built", "cached")
    # Its code is part of the key.
    own.write_text(own.read_text().replace("clipped = 0", "clipped = 1000"))
    built = run("optcli build own-file.yaml")
    assert built.code == 0, built.err
    assert clipped(report("own-file")) == first + 1000


@pytest.mark.slow
@pytest.mark.long
def test_a_pass_of_another_package(checkout, tmp_path_factory):
    page = Page.read("add-a-pass.md")
    site = tmp_path_factory.mktemp("site")
    package, about = site / "my_package", site / "my_package-1.0.dist-info"
    package.mkdir()
    about.mkdir()
    (package / "__init__.py").write_text("")
    (package / "clip_weights.py").write_text(page.files["optcli/passes/clip_weights.py"])
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[optcli.passes]\nclip = my_package.clip_weights:ClipWeights\n"
    )
    recipe = page.files["own-file.yaml"].replace('"./clip_weights.py:ClipWeights"', "clip")
    (checkout.folder / "theirs.yaml").write_text(recipe)
    built = checkout.run("optcli build theirs.yaml", site)
    assert built.code == 0, built.err
    assert clipped(checkout.report("own-file")) > 0
    assert "\nclip " in "\n" + checkout.run("optcli passes", site).out
    assert "largest absolute value" in checkout.run("optcli passes clip", site).out
    without = checkout.run("optcli build theirs.yaml --dry-run")
    assert without.code == 2
    assert "unknown pass 'clip'" in without.err


def test_the_page_declares_the_entry_point_as_it_is_tested():
    from pages import REPOSITORY

    text = (REPOSITORY / "docs" / "add-a-pass.md").read_text()
    assert '[project.entry-points."optcli.passes"]' in text
    assert 'clip = "my_package.clip_weights:ClipWeights"' in text


@pytest.mark.slow
@pytest.mark.long
def test_a_runner_as_one_file(checkout):
    page = Page.read("add-a-runner.md")
    assert page.commands == ["optcli build judged.yaml"]
    checkout.add(page, "optcli/runners/onnx_reference.py", "judged.yaml")
    built = checkout.run(page.commands[0])
    assert built.code == 0, built.err
    variants = checkout.report("judged")["variants"]
    assert variants["reference"]["runner"]["name"] == "onnx_reference"
    assert variants["reference"]["runner"]["provider"] == "numpy"
    assert variants["runtime"]["runner"]["name"] == "onnxruntime"
    assert all(variant["latency"][0]["p50_ms"]["value"] > 0 for variant in variants.values())
    agreement = subprocess.run(
        [sys.executable, "-c", AGREE, str(checkout.folder / "artifacts" / "judged" / "runtime")],
        cwd=checkout.folder,
        env={"PYTHONPATH": str(checkout.folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert agreement.stdout == "True\n", agreement.stderr
    (checkout.folder / "recipes" / "judged.yaml").write_text(page.files["judged.yaml"])
    checkout.generic_tests("runners/test_every_runner.py", "onnx_reference")


AGREE = """
import sys
from pathlib import Path
import numpy as np
from optcli import runners
from optcli.artifact import Artifact, Format
from optcli.settings import TensorSpec
spec = TensorSpec(name="image", dtype="float32", shape=("batch", 3, 8, 8))
artifact = Artifact("", Format.ONNX, Path(sys.argv[1]), "fp32", 0, "", {"outputs": ["logits"]})
feed = {"image": np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)}
found = []
for name in ("onnxruntime", "onnx_reference"):
    with runners.find(name)(threads=1).open(artifact, [spec]) as model:
        found.append(model.run(feed)["logits"])
print(np.allclose(*found, atol=1e-5))
"""
