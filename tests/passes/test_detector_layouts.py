"""Detectors that end in NMS, a threshold or TopK within the graph: quantized, each layer, and alive."""

import itertools

import numpy as np
import onnx
import pytest
from tiny_networks import Noise, apply, artifact, feed

from optcli.artifact import Format
from optcli.models.formats import onnx as onnx_format
from optcli.passes.convert_precision import ConvertPrecision
from optcli.passes.quantize_nncf import QuantizeNncf
from optcli.passes.quantize_onnxruntime import QuantizeOnnxruntime
from optcli.runners.onnxruntime import OnnxruntimeRunner
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow
IMAGE = (TensorSpec(name="image", shape=(1, 3, 32, 32)),)

HEAD = """
  features = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (image, first)
  gate = Sigmoid (features)
  swish = Mul (features, gate)
  sides = Conv (swish, sides_weight, sides_bias)
  logit_map = Conv (swish, logits_weight)
  side_rows = Reshape (sides, of_sides)
  lengths = Exp (side_rows)
  near, far = Split <axis = 1> (lengths)
  low = Sub (points, near)
  high = Add (points, far)
  corner_columns = Concat <axis = 1> (low, high)
  corners = Transpose <perm = [0, 2, 1]> (corner_columns)
  logit_columns = Reshape (logit_map, of_logits)
  shares = Sigmoid (logit_columns)
"""
AFTER_NMS = """
  which = NonMaxSuppression (corners, shares, most, overlap, least)
  places = Gather <axis = 1> (which, ends)
  taken = GatherND (corners, places)
  scored = GatherND (shares, which)
  classes = Gather <axis = 1> (which, one)
"""
LAYOUTS = {
    "rows": (
        "float[n, 6] rows",
        AFTER_NMS
        + """
  numbers = Cast <to = 1> (classes)
  number_column = Unsqueeze (numbers, last)
  score_column = Unsqueeze (scored, last)
  rows = Concat <axis = 1> (taken, score_column, number_column)
""",
    ),
    "torchvision": (
        "float[n, 4] boxes, int64[n] labels, float[n] scores",
        AFTER_NMS
        + """
  boxes = Identity (taken)
  labels = Add (classes, one)
  scores = Identity (scored)
""",
    ),
    "rtdetr": (
        "float[1, 20, 3] logits, float[1, 20, 4] pred_boxes",
        """
  logit_rows = Transpose <perm = [0, 2, 1]> (logit_columns)
  best = ReduceMax <axes = [2], keepdims = 0> (logit_rows)
  top, order = TopK (best, twenty)
  order_column = Unsqueeze (order, two)
  of_three = Expand (order_column, by_three)
  of_four = Expand (order_column, by_four)
  logits = GatherElements <axis = 1> (logit_rows, of_three)
  chosen = GatherElements <axis = 1> (corners, of_four)
  pred_boxes = Mul (chosen, fraction)
""",
    ),
}


def detector(folder, outputs, tail):
    random = np.random.default_rng(0)
    grid = np.stack(np.meshgrid(*2 * [np.arange(16, dtype=np.float32)])).reshape(1, 2, 256) * 40
    constants = {
        "first": random.normal(0, 0.3, (8, 3, 3, 3)).astype(np.float32),
        "sides_weight": random.normal(0, 0.1, (4, 8, 1, 1)).astype(np.float32),
        "sides_bias": np.full(4, 3, np.float32),
        "logits_weight": random.normal(0, 0.5, (3, 8, 1, 1)).astype(np.float32), "points": grid,
        "of_sides": np.array([1, 4, 256]), "of_logits": np.array([1, 3, 256]),
        "most": np.array([20]), "overlap": np.array([0.5], np.float32),
        "least": np.array([0.3], np.float32), "ends": np.array([0, 2]), "one": np.array(1),
        "last": np.array([1]), "two": np.array([2]), "twenty": np.array([20]),
        "by_three": np.array([1, 20, 3]), "by_four": np.array([1, 20, 4]),
        "fraction": np.float32(1 / 640),
    }  # fmt: skip
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>'
        f"detector (float[1, 3, 32, 32] image) => ({outputs}) {{ {HEAD} {tail} }}"
    )
    read = {name for node in model.graph.node for name in node.input}
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(each), name)
        for name, each in constants.items()
        if name in read
    )
    for node in model.graph.node:
        node.name = node.output[0]
    onnx_format.save(model, folder)
    return artifact(folder, Format.ONNX, [each.name for each in model.graph.output])


def detections(outputs):
    """Boxes in pixels and the scores of their best class, the best first."""
    if "rows" in outputs:
        boxes, scores = outputs["rows"][:, :4], outputs["rows"][:, 4]
    elif "scores" in outputs:
        boxes, scores = outputs["boxes"], outputs["scores"]
    else:
        boxes, scores = 640 * outputs["pred_boxes"][0], outputs["logits"][0].max(axis=1)
        scores = 1 / (1 + np.exp(-scores))
    best = np.argsort(-scores)
    return boxes[best], scores[best]


@pytest.mark.parametrize(
    ("layout", "kind"),
    [
        *itertools.product(LAYOUTS, (QuantizeOnnxruntime, ConvertPrecision)),
        # NNCF keeps what leads to NonMaxSuppression in floating point by itself.
        pytest.param("rtdetr", QuantizeNncf, marks=pytest.mark.long),
    ],
)
def test_scores_live_and_boxes_stay_where_they_were(tmp_path, layout, kind):
    source = detector(tmp_path, *LAYOUTS[layout])
    made = apply(kind(), source, tmp_path / "made", IMAGE, calibration=Noise(IMAGE, count=4))
    if kind is not ConvertPrecision:
        assert made.facts["quantized_operators"]["Conv"] == 3
    values = feed(IMAGE, 1, seed=9)
    with (
        OnnxruntimeRunner(threads=1).open(made, IMAGE) as mine,
        OnnxruntimeRunner(threads=1).open(source, IMAGE) as theirs,
    ):
        got, right = mine.run(values), theirs.run(values)
    for name, wanted in right.items():
        assert len(wanted) > 0
        assert abs(len(got[name]) - len(wanted)) <= 0.2 * len(wanted)
    (boxes, scores), (true_boxes, true_scores) = detections(got), detections(right)
    nearest = np.abs(boxes[:, None] - true_boxes[:5]).max(axis=2).min(axis=0)
    assert np.abs(scores[:5] - true_scores[:5]).max() < 0.02
    assert (nearest < 1).all()
