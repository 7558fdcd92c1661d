"""Outputs as facts of an artifact, and the decoding that their form suggests."""

import json

import numpy as np
import pytest

from optcli.outputs import FileOutput, Probe, decoding_options_of, facts_of, guessed_decoding, of_facts
from optcli.settings import TensorSpec

IMAGE = (TensorSpec(name="images", shape=("batch", 3, 96, 96)),)
CELLS = 12 * 12 + 6 * 6 + 3 * 3


def test_facts_say_what_the_model_gave():
    rows = np.zeros((2, CELLS, 6), np.float32)
    rows[..., 0] = 40
    outputs = {"rows": rows, "boxes": np.zeros((2, 4), np.int64), "scale": np.zeros(())}
    facts = json.loads(json.dumps(facts_of(outputs, 2, {"boxes"})))
    declared, probe = of_facts(facts)
    assert declared == (
        FileOutput("rows", (None, CELLS, 6), "float32"),
        FileOutput("boxes", (2, 4), "int64"),
        FileOutput("scale", (), "float64"),
    )
    assert probe == Probe(40.0, False)


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"output_tensors": None},
        {"output_tensors": 7},
        {"output_tensors": [{"name": "x"}]},
        {"output_tensors": [{"name": "x", "dtype": "float32", "shape": ["a", 1.5]}]},
    ],
)
def test_facts_from_elsewhere_may_be_anything(facts):
    assert of_facts(facts) == ((), None)


@pytest.mark.parametrize(
    ("shapes", "probe", "kind"),
    [
        ([(None, 84, CELLS)], None, "boxes"),  # Ultralytics
        ([(None, CELLS, 85)], Probe(3.0, False), "yolox"),
        ([(None, 3 * CELLS, 85)], None, "boxes"),  # YOLOv5
        ([(None, 30, 6)], Probe(90.0, True), "rows"),
        ([(None, 300, 4), (None, 300), (None, 300)], None, "boxes"),  # boxes, scores, labels
        ([(None, 30, 6)], None, None),  # rows of six that nobody has seen
        ([(None, 300, 4), (None, 300, 80)], None, None),  # a sigmoid or a softmax
        ([(None, 4 + 80 + 32, CELLS), (None, 32, 24, 24)], None, None),  # masks, which nobody reads
        ([(None, 56, CELLS)], None, None),  # keypoints, or 52 classes
        ([(None, 84, CELLS + 1)], None, None),
        ([(None, 10)], None, None),
    ],
)
def test_a_form_that_leaves_no_choice_suggests_a_decoding(shapes, probe, kind):
    dtypes = ["float32", "float32", "int64"]
    declared = [FileOutput(f"o{n}", shape, dtypes[n]) for n, shape in enumerate(shapes)]
    found = guessed_decoding(declared, IMAGE, probe)
    assert (found.detector[0] if found else None) == kind
    if kind == "yolox":
        assert not found.yolox.decoded
        assert guessed_decoding(declared, IMAGE, Probe(90.0, False)).yolox.decoded


@pytest.mark.parametrize(
    ("boxes", "scores", "says"),
    [
        ([0.1, 0.2, 0.3, 0.4], [0.9, 0.1], "normalized: true, background: first, nms: 0.65"),
        ([30, 40, 20, 10], [0.1, 0.2, 0.7], "format: cxcywh, background: last, nms: 0.65"),
        ([10, 20, 30, 40], [0.2, 0.3], "nms: 0.65"),
        ([0.1, 0.2, 0.3, 0.4], [3.0, -2.0], ""),  # logits, as DETR's
        ([0.1, 0.2, 0.3], [0.9, 0.1], ""),
    ],
)
def test_boxes_beside_scores_are_read_by_their_values(boxes, scores, says):
    pair = [np.tile(np.float32(each), (1, 2000, 1)) for each in (scores, boxes)]
    assert decoding_options_of(pair) == says
    few = [each[:, :300] for each in pair]
    assert decoding_options_of(few) == says.replace("nms: 0.65", "").removesuffix(", ")
    assert decoding_options_of(pair[:1]) == decoding_options_of([*pair, pair[0]]) == ""
