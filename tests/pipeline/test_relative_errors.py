"""How far outputs of a conversion lie from its parent's: each part of an output by its own range."""

import numpy as np
import pytest

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


def test_labels_count_by_the_share_that_differs():
    labels = np.arange(10)
    assert relative_error({"y": labels}, {"y": np.where(labels < 2, 99, labels)}) == 0.2
    assert relative_error({"y": np.zeros((0, 4))}, {"y": np.zeros((0, 4))}) == 0
