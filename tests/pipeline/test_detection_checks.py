"""A conversion of a detector that gives its best boxes in order, with the scores of all classes."""

import numpy as np
import onnx
import pytest
from tiny_networks import artifact

from optcli.artifact import Format
from optcli.errors import StepError
from optcli.models.formats import onnx as onnx_format
from optcli.pipeline.check import against_parent
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow
IMAGE = (TensorSpec(name="image", shape=(1, 3, 8, 8)),)

# Ranks have steps, so that many boxes rank alike; `nudge` decides which of these come first.
DETECTOR = """
<ir_version: 8, opset_import: ["" : 17]>
detector (float[1, 3, 8, 8] image) => (float[1, 64, 3] logits, float[1, 64, 4] pred_boxes) {
  maps = Conv (image, weight)
  columns = Reshape (maps, wanted)
  rows = Transpose <perm = [0, 2, 1]> (columns)
  all_logits, sides = Split <axis = 2> (rows, widths)
  all_boxes = Sigmoid (sides)
  best = ReduceMax <axes = [2], keepdims = 0> (all_logits)
  steps = Floor (best)
  ranks = Add (steps, nudge)
  top, order = TopK (ranks, all)
  column = Unsqueeze (order, last)
  by_three = Expand (column, three)
  by_four = Expand (column, four)
  logits = GatherElements <axis = 1> (all_logits, by_three)
  chosen = GatherElements <axis = 1> (all_boxes, by_four)
  pred_boxes = Mul (chosen, scale)
}
"""


def detector(folder, nudge=1e-4, scale=1.0, trained=True):
    weight = np.random.default_rng(0).normal(0, 1, (7, 3, 1, 1)).astype(np.float32)
    weight[:3] *= trained  # those of the logits
    constants = {
        "weight": weight,
        "wanted": np.array([1, 7, 64]), "widths": np.array([3, 4]),
        "nudge": np.linspace(0, nudge, 64, dtype=np.float32)[None], "all": np.array([64]),
        "last": np.array([2]), "three": np.array([1, 64, 3]), "four": np.array([1, 64, 4]),
        "scale": np.float32(scale),
    }  # fmt: skip
    model = onnx.parser.parse_model(DETECTOR)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(each, name) for name, each in constants.items()
    )
    folder.mkdir()
    onnx_format.save(model, folder)
    return artifact(folder, Format.ONNX, ["logits", "pred_boxes"])


def test_boxes_that_rank_alike_may_be_given_in_another_order(tmp_path):
    parent = detector(tmp_path / "parent")
    checked = against_parent(detector(tmp_path / "child", -1e-4), parent, IMAGE, None, 1e-3, 1)
    assert checked["largest_relative_error"] < 1e-6
    with pytest.raises(StepError, match=r"differ by 0\.0"):
        against_parent(detector(tmp_path / "moved", -1e-4, scale=1.02), parent, IMAGE, None, 1e-3, 1)


def test_of_boxes_that_are_all_as_likely_nobody_can_tell(tmp_path):
    parent, child = (
        detector(tmp_path / name, nudge, trained=False)
        for name, nudge in (("parent", 1e-4), ("child", -1e-4))
    )
    # All boxes are given here, in another order.
    assert against_parent(child, parent, IMAGE, None, 1e-3, 1)["largest_relative_error"] < 1e-6
    moved = detector(tmp_path / "moved", scale=1.02, trained=False)
    with pytest.raises(StepError, match=r"nobody can tell .* all as likely") as caught:
        against_parent(moved, parent, IMAGE, None, 1e-3, 1)
    assert "trained weights" in caught.value.hint
