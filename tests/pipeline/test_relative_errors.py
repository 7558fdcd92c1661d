"""How far outputs of a conversion lie from its parent's: each part of an output by its own range."""

import numpy as np
import pytest

from optcli.errors import StepError
from optcli.outputs.detection_sets import all_tie
from optcli.pipeline._check_samples import relative_error

RANDOM = np.random.default_rng(0)
BOXES = RANDOM.uniform(10, 640, (2, 4, 50)).astype(np.float32)
SCORES = (RANDOM.uniform(0, 0.9, (2, 6, 50)) ** 3).astype(np.float32)


def joined(boxes, scores, axis):
    """One output of both: along its second dimension, or its last."""
    whole = np.concatenate([boxes, scores], axis=1)
    return {"out": whole if axis == 1 else whole.transpose(0, 2, 1)}


@pytest.mark.parametrize("axis", [1, 2])
def test_boxes_do_not_hide_scores(axis):
    expected = joined(BOXES, SCORES, axis)
    wrong = relative_error(expected, joined(BOXES, SCORES + 0.6, axis))
    assert wrong == pytest.approx(0.6 / SCORES.max(), rel=1e-3)
    assert relative_error(expected, joined(BOXES + 0.6, SCORES, axis)) < 1e-3


def test_values_that_hardly_differ_from_zero_are_no_part_of_their_own():
    expected = joined(BOXES, SCORES * 1e-5, 1)
    assert relative_error(expected, joined(BOXES, SCORES * 1.1e-5, 1)) < 1e-4
    # Alone they are the output, whatever their range.
    assert relative_error({"y": SCORES * 1e-5}, {"y": SCORES * 1.1e-5}) == pytest.approx(0.1, rel=1e-3)


def test_one_range_has_one_scale():
    values = RANDOM.normal(0, 1, (3, 20)).astype(np.float32)
    moved = values.copy()
    moved[0, 0] += 0.5
    assert relative_error({"y": values}, {"y": moved}) == pytest.approx(0.5 / np.abs(values).max())


def test_what_is_no_number_is_infinitely_far():
    for bad in (np.nan, np.inf):
        wrong = BOXES.copy()
        wrong[0, 0, 0] = bad
        assert relative_error({"y": BOXES}, {"y": wrong}) == np.inf
        assert relative_error({"y": wrong}, {"y": BOXES}) == np.inf


def test_equal_infinities_are_equal():
    masked = SCORES.copy()
    masked[:, 3:] = -np.inf
    assert relative_error({"y": masked}, {"y": masked.copy()}) == 0
    moved = masked.copy()
    moved[0, 0, 0] += 0.5 * np.abs(SCORES[:, :3]).max()
    assert relative_error({"y": masked}, {"y": moved}) == pytest.approx(0.5, rel=1e-3)
    assert relative_error({"y": masked}, {"y": -masked}) == np.inf


def test_labels_count_by_the_share_that_differs():
    labels = np.arange(10)
    assert relative_error({"y": labels}, {"y": np.where(labels < 2, 99, labels)}) == 0.2
    assert relative_error({"y": np.zeros((0, 4))}, {"y": np.zeros((0, 4))}) == 0


def detections(order=None, images=1, **changes):
    """Boxes, scores and labels of some images, in an order; the scores of the first two are equal."""
    boxes, labels = BOXES[:images].transpose(0, 2, 1)[:, :20], np.tile(np.arange(20) % 3, (images, 1))
    scores = np.tile(np.linspace(0.9, 0.1, 20, dtype=np.float32), (images, 1))
    scores[:, 1] = scores[:, 0]
    made = {"boxes": boxes, "scores": scores, "labels": labels, **changes}
    order = np.arange(20) if order is None else order
    return {name: array[:, order] for name, array in made.items()}


SWAPPED = np.array([1, 0, *range(2, 20)])


@pytest.mark.parametrize("images", [1, 2])
def test_equal_detections_may_stand_in_another_order(images):
    expected = detections(images=images)
    assert relative_error(expected, detections(SWAPPED, images)) == 0
    assert relative_error(expected, detections(np.arange(20)[::-1], images)) == 0
    one = {name: array[0] for name, array in expected.items()}
    assert relative_error(one, {k: v[0] for k, v in detections(SWAPPED).items()}) == 0
    rows = np.concatenate(
        [expected["boxes"], expected["scores"][..., None], expected["labels"][..., None]], axis=-1
    ).astype(np.float32)
    assert relative_error({"out": rows}, {"out": rows[:, SWAPPED]}) == 0


def test_other_detections_are_as_far_as_they_are():
    expected = detections()
    assert relative_error(expected, detections(scores=expected["scores"] * 0.9)) == pytest.approx(
        0.1, rel=0.1
    )
    labels = expected["labels"].copy()
    labels[0, 4] = 7
    assert relative_error(expected, detections(SWAPPED, labels=labels)) > 0.04
    moved = expected["boxes"].copy()
    moved[0, 3] += 64
    found = relative_error(expected, detections(SWAPPED, boxes=moved))
    assert found == pytest.approx(64 / expected["boxes"].max(), rel=0.5)
    # The weakest that is kept may be another one that is as weak; others may not be gone.
    weak = expected["boxes"].copy()
    weak[0, -1] += 64
    assert relative_error(expected, detections(boxes=weak)) == 0
    one = {name: array[:, :1] for name, array in expected.items()}
    assert relative_error(one, {**one, "boxes": one["boxes"] + 64}) > 0.1
    images = detections(images=2)
    exchanged = {name: array[::-1] for name, array in images.items()}
    assert relative_error(images, exchanged) > 0.01


def test_what_is_detected_where_the_parent_detects_nothing_is_refused():
    empty = {"boxes": np.zeros((0, 4), np.float32)}
    with pytest.raises(StepError, match=r"'boxes' has shape \[1, 4\], .* \[0, 4\]") as failure:
        relative_error(empty, {"boxes": np.ones((1, 4), np.float32)})
    assert "detects nothing" in failure.value.hint


def test_one_more_at_the_threshold_of_scores_is_no_difference():
    expected = detections()
    assert relative_error(expected, {name: each[:, :-1] for name, each in expected.items()}) == 0
    assert relative_error({name: each[:, :-1] for name, each in expected.items()}, expected) == 0
    # But one of the surest is.
    with_score = {name: each[:, 1:] for name, each in expected.items()}
    assert relative_error(expected, with_score) > 0.01
    for wrong in ({"boxes": expected["boxes"][:, :15]}, {"labels": expected["labels"][:, :-1] + 1}):
        cut = {name: each[:, :-1] for name, each in expected.items()}
        with pytest.raises(StepError, match="has shape"):
            relative_error(expected, {**cut, **wrong})


def queries(order=None, images=1, **changes):
    """Boxes and logits of all classes, as of RT-DETR; the best logits of the first two are equal."""
    random = np.random.default_rng(1)
    boxes = random.uniform(0.1, 0.9, (images, 40, 4)).astype(np.float32)
    logits = random.normal(-8, 1, (images, 40, 5)).astype(np.float32)
    logits[..., 2] = np.linspace(3, -4, 40)
    logits[:, 1, 2] = logits[:, 0, 2]
    made = {"logits": logits, "pred_boxes": boxes, **changes}
    order = np.arange(40) if order is None else order
    return {name: array[:, order] for name, array in made.items()}


@pytest.mark.parametrize("images", [1, 2])
def test_boxes_with_all_classes_may_stand_in_another_order(images):
    expected, swapped = queries(images=images), np.array([1, 0, *range(2, 40)])
    assert relative_error(expected, queries(swapped, images)) == 0
    # Offsets from anchors are read by their order.
    offsets = {**expected, "pred_boxes": expected["pred_boxes"] - 0.5}
    assert relative_error(offsets, {name: each[:, swapped] for name, each in offsets.items()}) > 0.05


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("logits", lambda each: np.where(np.arange(5) == 2, -8, each)),
        ("logits", lambda each: each[..., [0, 2, 1, 3, 4]]),
        ("logits", lambda each: each - np.float32(np.log(2))),
        ("pred_boxes", lambda each: each + np.float32(0.05)),
        ("pred_boxes", lambda each: each[:, ::-1]),
    ],
    ids=["zeroed", "permuted", "halved", "shifted", "exchanged"],
)
def test_boxes_with_all_classes_that_are_others_are_far(name, change):
    swapped = np.array([1, 0, *range(2, 40)])
    wrong = queries(swapped, **{name: change(queries()[name])})
    assert relative_error(queries(), wrong) > 0.04
    # The weakest of all may be another one that is as weak.
    last = queries()
    last["pred_boxes"][0, -1] = 0.5
    assert relative_error(queries(), last) == 0


def test_detections_that_are_all_as_likely_are_told_from_others():
    expected = detections()
    assert not all_tie(expected)
    assert all_tie({**expected, "scores": np.full((1, 20), 0.011, np.float32)})
    assert not all_tie({"y": SCORES})
    assert not all_tie(queries())
    assert all_tie(queries(logits=np.full((1, 40, 5), -4.6, np.float32)))
    # Four classes: both outputs have four columns.
    assert all_tie(queries(logits=np.full((1, 40, 4), -4.6, np.float32)))
