"""Another numbering of the labels that would surely make more answers right is said."""

import numpy as np
import pytest

from optcli.accuracy import better_order
from optcli.accuracy.detections import pairs


class Answers:
    """An evaluation, as far as it is asked here."""

    def __init__(self, **arrays):
        self._arrays = arrays

    def array(self, name):
        return self._arrays.get(name)


def answers(label, predicted, share=0.97, seed=0):
    """`share` of the predictions are as said, and the others are class 0."""
    draw = np.random.default_rng(seed)
    wrong = draw.random(len(label)) > share
    return Answers(label=label, predicted=np.where(wrong, 0, predicted), cluster=np.arange(len(label)))


LABELS = np.random.default_rng(1).integers(0, 20, 400)


@pytest.mark.parametrize(("step", "said"), [(1, "`labels: {offset: 1}`"), (-1, "offset: -1")])
def test_an_offset_of_one(step, said):
    found = better_order(answers(LABELS, LABELS + step), {})
    assert said in found
    assert "% of the samples would be right with" in found


@pytest.mark.parametrize("first", [2, 10, 15])
def test_a_class_that_the_data_lack_at_any_accuracy(first):
    moved = LABELS + (first <= LABELS)
    assert (moved == LABELS).mean() < 0.9
    assert f"labels one larger from {first} on" in better_order(answers(LABELS, moved), {})
    back = LABELS - (first <= LABELS)
    assert f"labels one smaller from {first} on" in better_order(answers(LABELS, back), {})


def test_an_order_that_is_known_by_its_name():
    order = np.random.default_rng(2).permutation(20)
    found = better_order(answers(LABELS, order[LABELS]), {"sorted by name": order.tolist()})
    assert "the classes in another order, sorted by name" in found


@pytest.mark.parametrize(
    "predicted",
    [
        LABELS,
        np.random.default_rng(3).integers(0, 20, 400),
        np.where(LABELS >= 19, LABELS + 1, LABELS),
    ],
)
def test_what_does_not_surely_gain_ten_points_is_not_said(predicted):
    assert better_order(answers(LABELS, predicted), {"sorted": list(range(20))[::-1]}) is None


def test_any_order_is_found_and_the_classes_that_it_moves_are_named():
    order = np.arange(20)
    order[[3, 5, 7]] = order[[5, 7, 3]]
    found = better_order(answers(LABELS, order[LABELS]), {})
    assert "right with the classes in another order, such as label" in found
    assert {f"{old} as {order[old]}" in found for old in (3, 5, 7)} == {True}
    named = better_order(answers(LABELS, order[LABELS]), {"sorted by name": order.tolist()})
    assert "sorted by name" in named


def test_pixels_tell_the_classes_of_a_map():
    label = np.random.default_rng(2).integers(0, 4, (60, 64))
    images = np.repeat(np.arange(60), 64)
    order = np.array([0, 2, 1, 3])
    asked = {"pixel_label": label.ravel(), "pixel_class": order[label].ravel()}
    found = better_order(Answers(**asked, pixel_sample=images), {})
    assert "of the pixels would be right with the classes in another order" in found
    assert {"1 as 2" in found, "2 as 1" in found} == {True}
    few = images < 6
    assert (
        better_order(Answers(**{k: v[few] for k, v in asked.items()}, pixel_sample=images[few]), {})
        is None
    )


def test_copies_are_one_piece_of_evidence():
    label = np.tile(np.arange(5), 40)
    copies = Answers(label=label, predicted=label + 1, cluster=np.tile(np.arange(5), 40))
    assert better_order(copies, {}) is None


def test_nothing_is_said_without_labels_or_of_few():
    assert better_order(Answers(), {}) is None
    assert better_order(answers(LABELS[:10], LABELS[:10] + 1), {}) is None


def test_boxes_that_were_found_tell_the_classes_of_a_detector():
    box = np.array([[0, 0, 10, 10], [20, 20, 30, 30], [50, 50, 60, 60.0]])
    target = {"boxes": box, "labels": np.array([1, 2, 3])}
    found = {
        "boxes": np.array([[21, 20, 30, 30], [0, 0, 10, 10], [0, 0, 9, 10], [80, 80, 90, 90.0]]),
        "scores": np.array([0.9, 0.8, 0.7, 0.9]),
        "labels": np.array([3, 2, 7, 1]),
    }
    seen = pairs([found] * 30, [target] * 30)
    assert seen["pair_label"].tolist() == [1, 2] * 30
    assert seen["pair_class"].tolist() == [2, 3] * 30
    assert "of the boxes that were found would be right with labels one larger" in better_order(
        Answers(**seen), {}
    )
    assert pairs(None, [target]) == {}
    assert pairs([found], [None]) == {}
    assert (
        pairs([{**found, "boxes": np.zeros((0, 4)), "scores": [], "labels": []}], [target])[
            "pair_label"
        ].size
        == 0
    )
