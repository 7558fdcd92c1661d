"""How the outputs of an artifact are decoded, by whom, and what a recipe may say of them."""

import json

import numpy as np
import pytest

from optcli.artifact import Artifact, Format
from optcli.errors import InputError
from optcli.outputs import FileOutput
from optcli.pipeline.decoding import (
    decoding_of,
    described,
    require_outputs,
    said_of_outputs,
    with_decoding,
)
from optcli.recipe import load

CELLS = 8 * 8 + 4 * 4 + 2 * 2
SAID = {"task": "detect", "names": "{0: 'cat', 1: 'dog'}"}
DETECTOR = [FileOutput("output0", (None, 6, CELLS), "float32")]
RECIPE = """
version: 1
name: x
model: {{source: "onnx:model.onnx"}}
inputs: [{{name: images, shape: [1, 3, 64, 64]}}]
{}
variants: {{onnx: []}}
"""


@pytest.fixture(autouse=True)
def files(tmp_path):
    """What the recipes name: nobody opens it."""
    (tmp_path / "model.onnx").write_bytes(b"x")
    np.savez(tmp_path / "x.npz", images=np.zeros((2, 3, 64, 64), np.float32), label=np.zeros(2, int))


def recipe(tmp_path, more=""):
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(more))
    return load(tmp_path / "recipe.yaml")


def artifact(tmp_path, outputs=DETECTOR, metadata=None):
    tensors = [{"name": each.name, "dtype": each.dtype, "shape": each.shape} for each in outputs]
    facts = {"output_tensors": tensors, **({"exporter_metadata": metadata} if metadata else {})}
    return Artifact("k", Format.ONNX, tmp_path, "fp32", 1, "d", facts)


DATA = "data: {evaluation: {source: 'npz:x.npz'}}\n"


@pytest.mark.parametrize(
    ("more", "metadata", "source", "decoded"),
    [
        ("postprocess: {rows: {}}", SAID, "recipe", True),
        ("", SAID, "metadata", True),
        (DATA + "accuracy: {metric: map}", SAID, "metadata", True),
        (DATA + "accuracy: {metric: 'python:own.py:mean'}", SAID, "recipe", False),
        (DATA + "accuracy: {metric: top1}", SAID, "recipe", False),
        ("outputs: {output0: embedding}", SAID, "unknown", False),
        ("outputs: {output0: [boxes, {scores: 2}]}", SAID, "metadata", True),
        ("", None, "shape", True),
        (DATA + "accuracy: {metric: map}", None, "unknown", False),  # labels are judged by no guess
        ("outputs: {output0: embedding}", None, "unknown", False),
        ("", {**SAID, "task": "classify"}, "unknown", False),
    ],
)
def test_who_says_how_outputs_are_decoded(tmp_path, more, metadata, source, decoded):
    (tmp_path / "own.py").write_text("def mean(outputs, target, meta): return 0.0\n")
    found = decoding_of(recipe(tmp_path, more), artifact(tmp_path, metadata=metadata))
    assert found.source == source
    assert (found.settings is not None) == decoded
    assert (found.known is not None) == (decoded and source != "shape"), "no guess answers anything"
    assert found.class_names == (("cat", "dog") if metadata else None)
    if source in ("metadata", "shape"):
        assert "postprocess: {boxes: {format: cxcywh, nms: 0.65, transposed: true}}" in found.words
        assert ("guess" in found.words) == (source == "shape")
    else:
        assert found.words is None


def test_a_guess_is_told_and_marked(tmp_path):
    class Told:
        said = ()

        def warned(self, step, message):
            self.said = (*self.said, (step, message))

    told, plain = Told(), recipe(tmp_path)
    decoded, guessed = with_decoding(plain, artifact(tmp_path), told)
    assert guessed
    assert decoded.postprocess.boxes.transposed
    assert told.said[0][0] == "accuracy"
    assert "that is a guess" in told.said[0][1]


IMAGES = "{name: images, shape: [1, 3, 64, 64]}"
SIZED = IMAGES + ", {name: s, shape: [1, 2], value: original_size}"


def test_boxes_of_a_model_that_knows_the_size_of_the_image_are_in_its_pixels(tmp_path):
    shapes = {"boxes": ((None, 9, 4), "float32"), "scores": ((None, 9), "float32")}
    shapes["labels"] = ((None, 9), "int64")
    outputs = [FileOutput(name, *said) for name, said in shapes.items()]
    text = RECIPE.format("").replace(IMAGES, SIZED)
    (tmp_path / "recipe.yaml").write_text(text)
    found = decoding_of(load(tmp_path / "recipe.yaml"), artifact(tmp_path, outputs))
    assert (found.source, found.settings.boxes.original) == ("shape", True)


@pytest.mark.parametrize(
    ("more", "place", "message", "hint"),
    [
        (
            "outputs: {outpt0: logits}",
            "outputs.outpt0",
            "no output 'outpt0'",
            "output0",
        ),
        ("outputs: {output0: [boxes, {scores: 9}]}", "outputs.output0", "the parts are 13", "size"),
        (
            "postprocess: {rows: {output: rows}}",
            "postprocess.rows",
            "no output",
            "output0",
        ),
        (
            "postprocess: {boxes: {boxes: output0, scores: output1}}",
            "postprocess.boxes",
            "no output 'output1'",
            "did you mean 'output0'?",
        ),
        (
            DATA + "accuracy: {metric: top1, output: y}",
            "accuracy.output",
            "no output 'y'",
            "output0",
        ),
    ],
)
def test_a_recipe_speaks_of_outputs_that_are_there(tmp_path, more, place, message, hint):
    with pytest.raises(InputError) as caught:
        require_outputs(recipe(tmp_path, more), artifact(tmp_path))
    assert caught.value.place == place
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_what_is_there_is_no_error(tmp_path):
    more = "outputs: {output0: [boxes, {scores: 2}]}\npostprocess: {boxes: {boxes: output0}}"
    require_outputs(recipe(tmp_path, more), artifact(tmp_path))
    # Of an artifact whose outputs nobody knows nothing can be said.
    require_outputs(recipe(tmp_path, "outputs: {y: logits}"), artifact(tmp_path, []))


@pytest.mark.parametrize(
    ("more", "metadata", "kinds", "decoded"),
    [
        ("postprocess: {boxes: {transposed: true}}", None, ["boxes", "scores"], True),
        ("", SAID, ["boxes", "scores"], True),
        ("", None, ["boxes", "scores"], True),  # a guess serves comparisons
        (DATA + "accuracy: {metric: map}", None, ["boxes", "scores"], False),
        (DATA + "accuracy: {metric: top1}", None, ["logits"], False),
        ("outputs: {output0: embedding}", None, ["embedding"], False),
    ],
)
def test_what_is_trained_is_told_what_its_outputs_hold(tmp_path, more, metadata, kinds, decoded):
    settings, parts = described(recipe(tmp_path, more), artifact(tmp_path, metadata=metadata))
    assert [part.kind for part in parts["output0"]] == kinds
    assert (settings is not None) is decoded


def test_what_a_recipe_says_of_its_outputs_is_plain_data(tmp_path):
    said = [
        said_of_outputs(recipe(tmp_path, more))
        for more in ("", "outputs: {output0: embedding}", "postprocess: {rows: {}}")
    ]
    said.append(said_of_outputs(recipe(tmp_path, DATA + "accuracy: {metric: top1}")))
    assert len({json.dumps(each) for each in said}) == len(said)
