"""`optcli verify-accuracy --layers` on a build: against the float artifact in a variant's own chain."""

import json
import re

import pytest
from tiny_project import DATA

# A baseline that is not what INT8 was made from, and a pass that breaks what it is given.
VARIANTS = """\
  other: ["./broken.py:Broken"]
  int8: [quantize_onnxruntime]
  dead: [quantize_onnxruntime, "./broken.py:Broken"]
"""
BROKEN = '''\
"""A pass of the user's own."""

from typing import ClassVar

from optcli.artifact import Format
from optcli.models.formats import onnx
from optcli.passes import Made, Pass


class Broken(Pass):
    """Turns the sign of what the network gives."""

    accepts: ClassVar = (Format.ONNX,)

    def produces(self, source):
        return Format.ONNX

    def run(self, source, job):
        from onnx import helper

        model = onnx.open(source.path)
        last = next(node for node in model.graph.node if "logits" in node.output)
        last.output[0] = "turned"
        model.graph.node.append(helper.make_node("Neg", ["turned"], ["logits"], name="neg"))
        onnx.save(model, job.out)
        return Made(precision=source.precision, facts={})
'''


@pytest.fixture
def built(place):
    (place.folder / "broken.py").write_text(BROKEN)
    place.recipe(VARIANTS, data=DATA.replace("max_drop: 0.5", "max_drop: 1.0"))
    place.build()
    return place


@pytest.mark.long
@pytest.mark.slow
def test_a_variant_is_compared_with_what_it_was_quantized_from(built, optcli):
    said = optcli("verify-accuracy", "--layers", "int8", "--json")
    assert said.code == 5, "the labels of noise are guessed, which decides nothing"
    found = json.loads(said.out)["variants"]
    assert found["dead"]["layers"] is None
    layers = found["int8"]["layers"]
    assert layers["reason"] is None
    # Against `other`, which turns signs, it would be below 0 dB.
    assert min(row["own_db"] for row in layers["rows"] if row["own_db"] is not None) > 20
    product = next(row for row in layers["rows"] if row["operator"] == "MatMul")
    assert product["advice"].startswith("{quantize_onnxruntime: {")

    kept = json.loads((built.artifacts / "tiny" / "report.json").read_text())["variants"]
    assert kept["int8"]["layers"] == layers
    assert kept["dead"]["layers"] is None
    assert "int8: the error starts at" in optcli("compare").out
    assert "Where the error of int8 starts" in optcli("compare", "--format", "html").out

    text = optcli("verify-accuracy", "recipe.yaml", "--layers", "dead")
    assert "cached" not in text.err
    first = text.out.split("where the error starts")[1].splitlines()[3]
    assert "MatMul" in first
    assert re.search(r"-(5\.[5-9]|6\.[0-4]) dB", first), "a turned sign: about -6 dB"

    assert "note    dead › layers: compared with its float network" in text.err
    assert "about a minute" in text.err

    again = optcli("verify-accuracy", "--layers", "recipe.yaml")
    assert "about a minute" not in again.err, "what is in the store takes no time"
    assert again.err.count("cached") == 2
    assert again.out.count("where the error starts") == 2
    kept = json.loads((built.artifacts / "tiny" / "report.json").read_text())["variants"]
    assert kept["dead"]["layers"]["rows"][0]["operator"] == "MatMul"


def test_an_unknown_variant_and_the_baseline_are_refused(place, optcli):
    unknown = optcli("verify-accuracy", "--layers", "copid")
    assert unknown.code == 2
    assert "did you mean 'copied'?" in unknown.err
    assert optcli("verify-accuracy", "--layers", "plain").code == 2


def test_a_recipe_that_is_gone_is_said(place, optcli):
    path = place.artifacts / "tiny" / "report.json"
    report = json.loads(path.read_text())
    report["recipe"]["path"] = str(place.folder / "nowhere.yaml")
    path.write_text(json.dumps(report))
    said = optcli("verify-accuracy", "--layers", "copied")
    assert said.code == 2
    assert "the recipe of this report is gone" in said.err


@pytest.mark.long
@pytest.mark.slow
def test_what_takes_long_is_said_before_and_can_be_left_out(built, optcli):
    path = built.artifacts / "tiny" / "report.json"
    report = json.loads(path.read_text())
    for verdict in report["variants"]["dead"]["verdicts"]:
        verdict["outcome"] = "reject"
    path.write_text(json.dumps(report))
    line = ("verify-accuracy", "recipe.yaml")
    without = optcli(*line, "--no-layers")
    assert without.code == 1
    assert "layers" not in without.err
    assert "where the error starts" not in without.out
    said = optcli(*line)
    assert said.code == without.code
    assert "note    dead › layers: compared with its float network" in said.err
    assert "--no-layers leaves it out" in said.err


def test_layers_cannot_be_asked_for_and_left_out(place, optcli):
    said = optcli("verify-accuracy", "--layers", "--no-layers")
    assert said.code == 2
    assert "found --layers and --no-layers" in said.err
