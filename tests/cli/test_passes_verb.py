"""`optcli passes`: the example that it shows of each pass is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from optcli import passes, runners
from optcli.cli.passes import PassDescription, example, in_words
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
    assert "\nmakes  " in said.out
    lines = said.out.partition("\nin a recipe\n")[2].splitlines()
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
    about = PassDescription("", ("onnx",), {}, (), (), (), {"limit": "0.5"}, {})
    assert example("./mine.py:Clip", about) == [
        "variants:",
        '  Clip: [export_onnx, {"./mine.py:Clip": {limit: 0.5}}]',
    ]


# What only Python shows of a type: no reader of a recipe can use it.
OF_PYTHON = ("<function", "<class", "Annotated", "FieldInfo", "typing.", "Validator", "0x", "Literal[")


@pytest.mark.parametrize("name", [*passes.own_names(), "FILE"])
def test_options_are_told_in_words(name, tmp_path: Path, optcli):
    if name == "FILE":
        (tmp_path / "mine.py").write_text(MINE)
        name = f"{tmp_path / 'mine.py'}:Mine"
    said = optcli("passes", name)
    assert said.code == 0, said.err
    assert [word for word in OF_PYTHON if word in said.out] == []
    kind = optcli("passes", name, "--json").out
    assert [word for word in OF_PYTHON if word in kind] == []


MINE = '''
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from optcli.passes import Pass


class Mine(Pass):
    """Does something."""

    accepts = ("onnx",)
    limit: Annotated[float, BeforeValidator(lambda value: value)] = Field(0.5, gt=0)
    kinds: tuple[Literal["Conv"], ...] = ()

    def produces(self, source):
        return source

    def run(self, source, job):
        pass
'''


def test_a_schema_in_words():
    assert in_words({"type": "boolean"}) == "true or false"
    assert in_words({"anyOf": [{"type": "boolean"}, {"type": "null"}]}) == "true, false or null"
    least = {"type": "integer", "minimum": 1}
    assert in_words({"anyOf": [least, {"type": "null"}]}) == "integer, at least 1, or null"
    assert in_words({"type": "array", "items": {"type": "string"}}) == "list of texts"
    assert in_words({"type": "array", "items": {"enum": ["a", "b"]}}) == "list of a or b"
    assert in_words({"$ref": "#/$defs/X"}, {"X": {"enum": ["a", 1, "b"]}}) == "a, 1 or b"
    assert (
        in_words({"type": "object", "additionalProperties": least}) == "mapping to integers, at least 1"
    )
    assert in_words({}) == "any value"


@pytest.mark.slow
def test_the_schema_of_recipes_shows_no_python(optcli):
    said = optcli("schema").out
    assert [word for word in OF_PYTHON if word in said] == []


@pytest.mark.parametrize("name", runners.names())
def test_the_settings_of_a_runner_can_be_told_in_words(name):
    told = runners.find(name).model_json_schema()
    for option, schema in told["properties"].items():
        words = in_words(schema, told.get("$defs"))
        assert words != "any value", option
        assert [word for word in OF_PYTHON if word in words] == []
