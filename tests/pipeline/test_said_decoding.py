"""The decoding that an artifact's facts say, and facts of other passes that say none."""

from pathlib import Path

from optcli.artifact import Artifact, Format
from optcli.observer import Silent
from optcli.pipeline.decoding import with_decoding
from optcli.recipe import load

RECIPE = """\
version: 1
name: one
model: {source: "python:net.py:Net"}
inputs: [{name: image, shape: [batch, 3, 8, 8]}]
variants: {onnx: [export_onnx]}
"""


def test_the_exporter_of_a_pass_says_nothing_of_the_outputs(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("class Net: ...\n")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    recipe = load(tmp_path / "recipe.yaml")
    facts = {"exporter": "dynamo", "opset": 18}  # those of `export_onnx`
    made = Artifact("k", Format.ONNX, tmp_path, "fp32", 1, "d", facts)
    assert with_decoding(recipe, made, Silent()) is recipe
