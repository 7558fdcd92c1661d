"""Outputs judged part by part, without labels: what died, what is far, and what may differ."""

import numpy as np
import pytest

from optcli import accuracy
from optcli.accuracy.detections import compare, records
from optcli.accuracy.parts import part_distances
from optcli.accuracy.verdicts import dead_parts, doubt, scope
from optcli.outputs import OutputMeaning, OutputPart
from optcli.results.outcomes import DetectionChange, OutputError

UNKNOWN = OutputMeaning("out", (OutputPart("unknown"),), "unknown")


def detector(samples=8, places=60, classes=6, seed=0):
    """Outputs `[samples, 4 + classes, places]`: boxes in pixels of 640, and scores."""
    random = np.random.default_rng(seed)
    boxes = random.uniform(20, 640, (samples, 4, places))
    scores = random.uniform(0, 0.9, (samples, classes, places)) ** 3
    return np.concatenate([boxes, scores], axis=1).astype(np.float32)


def steps(values, size):
    """Values on a grid, as 8 bits give them."""
    return (np.round(values / size) * size).astype(np.float32)


def judged(mine, theirs, meaning=UNKNOWN, score=0.0, **facts):
    """What is said of a variant's outputs: what died, and the doubt."""
    parts = part_distances(meaning, mine, theirs, score)
    error = OutputError(finite=True, constant=False, samples=len(mine), parts=parts, **facts)
    verdict = doubt(error)
    return dead_parts(error), verdict.reason if verdict else None


def test_scores_that_one_scale_with_boxes_has_killed_are_dead():
    theirs = detector()
    died, _ = judged(steps(theirs, 2.5), theirs)
    assert died == (
        f"output 'out' (4 to 9 of dimension 1, values from {theirs[:, 4:].min():.3g} to"
        f" {theirs[:, 4:].max():.3g}): all 6 are constant, and they vary in the baseline"
    )


# The axis of the parts, scores first, and several scales after one another.
@pytest.mark.parametrize(
    "layout",
    [
        lambda x: x.transpose(0, 2, 1),
        lambda x: np.concatenate([x[:, 4:], x[:, :4]], axis=1),
        lambda x: x.reshape(*x.shape[:2], 6, 10),
        lambda x: x[:, None],
        lambda x: np.concatenate([x[:, :4], x[:, 4:] * 1e-3], axis=1),
    ],
    ids=["channels last", "scores first", "maps", "one more dimension", "small scores"],
)
def test_dead_scores_are_found_in_any_layout(layout):
    theirs = detector()
    died, _ = judged(layout(steps(theirs, 2.5)), layout(theirs))
    assert died is not None
    assert "all 6 are constant" in died
    assert judged(layout(theirs), layout(theirs)) == (None, None)


def test_one_dead_class_is_named():
    theirs = detector()
    mine = theirs.copy()
    mine[:, 7] = 0
    for meaning in (
        UNKNOWN,
        OutputMeaning("out", (OutputPart("boxes", 0, 0, 4), OutputPart("scores", 0, 4, 10)), "recipe"),
    ):
        died, _ = judged(mine, theirs, meaning)
        assert died is not None
        assert died.endswith("1 entry is constant along dimension 1 (7), and it varies in the baseline")


@pytest.mark.parametrize("stuck", [0.0, 0.9, 0.31], ids=["zero", "saturated", "constant"])
def test_a_class_map_of_one_value_is_dead(stuck):
    theirs = np.random.default_rng(0).normal(0, 1, (4, 5, 8, 8)).astype(np.float32)
    mine = theirs.copy()
    mine[:, 3] = stuck
    died, _ = judged(mine, theirs, OutputMeaning("out", (OutputPart("class_map"),), "recipe"))
    assert "1 entry is constant along dimension 1 (3)" in str(died)


def test_classes_that_never_fire_may_round_to_zero():
    theirs = detector()
    theirs[:, 8] *= 1e-3
    mine = theirs.copy()
    mine[:, 8] = 0
    meaning = OutputMeaning(
        "out", (OutputPart("boxes", 0, 0, 4), OutputPart("scores", 0, 4, 10)), "recipe"
    )
    assert judged(mine, theirs, meaning)[0] is None
    scores = part_distances(meaning, mine, theirs, 0.0)[1]
    assert (scores.part, scores.dead_count, scores.faded_count) == ("scores", 0, 1)
    # A class that reaches a tenth of the score in use is no such class, however small beside others.
    theirs[:, 8] *= 100
    assert "1 entry" in str(judged(mine, theirs, meaning, 0.25)[0])


def test_a_part_that_was_constant_may_be():
    theirs = detector()
    theirs[:, 5] = 0.4
    assert judged(steps(theirs, 1e-3), theirs) == (None, None)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda x: np.concatenate([x[:, :4], x[:, 4:] / 2], axis=1),
            "0.50 times the baseline's values",
        ),
        (lambda x: np.concatenate([x[:, :1] + 13, x[:, 1:]], axis=1), "shifted by 2.1% of their range"),
        (lambda x: x[:, [0, 1, 2, 3, 5, 4, 6, 7, 8, 9]], "far from the baseline's"),
        (lambda x: x[:, [1, 0, *range(2, 10)]], "far from the baseline's"),
        (lambda x: x[::-1], "far from the baseline's"),
    ],
    ids=["halved scores", "shifted boxes", "swapped classes", "swapped coordinates", "other samples"],
)
def test_what_only_labels_could_clear_is_said(change, said):
    theirs = detector()
    died, doubtful = judged(change(theirs), theirs)
    assert died is None
    assert said in str(doubtful)
    assert str(doubtful).endswith("only labels can show what that costs in accuracy")


def test_honest_rounding_of_each_part_is_no_doubt():
    theirs = detector()
    mine = np.concatenate([steps(theirs[:, :4], 2.5), steps(theirs[:, 4:], 1 / 255)], axis=1)
    assert judged(mine, theirs) == (None, None)


def test_a_column_of_class_numbers_counts_by_agreement():
    theirs = detector(classes=1)
    labels = np.random.default_rng(1).integers(0, 80, (8, 1, 60)).astype(np.float32)
    theirs = np.concatenate([theirs, labels], axis=1).transpose(0, 2, 1)  # boxes, score, class
    few, many = theirs.copy(), theirs.copy()
    few[0, :10, 5] = 3
    many[:2, :, 5] = 3
    assert judged(few, theirs) == (None, None)
    died, doubtful = judged(many, theirs)
    assert died is None
    assert "class numbers (5 of dimension 2): 25% of them differ" in str(doubtful)
    assert "100% of them differ" in str(judged(theirs + np.eye(6, dtype=np.float32)[5], theirs)[1])
    gone = theirs.copy()
    gone[..., 5] = 0
    assert "class numbers" in str(judged(gone, theirs)[0])
    # Whole numbers in several columns are pixels.
    pixels = np.round(theirs)
    assert {each.part for each in part_distances(UNKNOWN, pixels, pixels, 0.0)} == {"unknown"}


def test_outputs_of_one_kind_stay_one_part():
    theirs = np.random.default_rng(0).normal(0, 1, (20, 10)).astype(np.float32)
    (part,) = part_distances(UNKNOWN, theirs + 0.001, theirs, 0.0)
    assert (part.of, part.sqnr_db) == (None, pytest.approx(60, abs=1))
    assert part_distances(UNKNOWN, theirs[:1], theirs[:1], 0.0) == ()  # one sample varies in nothing
    assert part_distances(UNKNOWN, theirs.astype(int), theirs.astype(int), 0.0) == ()


def test_the_same_in_small_pieces(monkeypatch):
    theirs = detector()
    mine = steps(theirs, 0.01)
    whole = part_distances(UNKNOWN, mine, theirs, 0.0)
    monkeypatch.setattr("optcli.accuracy.parts._BLOCK_VALUES", 100)
    assert part_distances(UNKNOWN, mine, theirs, 0.0) == whole


def found(*rows):
    """Records of images: each a list of (box, score, label)."""
    decoded = [
        {
            "boxes": np.array([box for box, _, _ in image], np.float64).reshape(-1, 4),
            "scores": np.array([score for _, score, _ in image]),
            "labels": np.array([label for _, _, label in image], int),
        }
        for image in rows
    ]
    return list(records(decoded).values())


BOXES = [(10 * n, 10, 10 * n + 8, 30) for n in range(20)]
BASE = [[(box, 0.8, n % 2) for n, box in enumerate(BOXES)], []]


def change_of(mine, base=BASE, score=0.01):
    change = compare(found(*mine), found(*base), len(base), score)
    assert change is not None
    return change, doubt(OutputError(finite=True, constant=False, detections=change))


def test_the_same_detections_are_no_doubt():
    change, doubtful = change_of([[(box, s - 0.02, n) for box, s, n in image] for image in BASE])
    assert (change.confident, change.same_place, change.same, change.new, change.images) == (
        20,
        20,
        20,
        0,
        2,
    )
    assert change.score_ratio == pytest.approx(0.975)
    assert doubtful is None


def altered(change):
    """The baseline's images with each detection changed: its box, its score and its label."""
    return [[change(n, *row) for n, row in enumerate(image)] for image in BASE]


@pytest.mark.parametrize(
    ("mine", "said"),
    [
        (
            [BASE[0][3:], []],
            "it finds 85% of the baseline's 20 detections with a score of 0.25 or more",
        ),
        (altered(lambda n, b, s, c: (b, s / 2, c)), "the scores of the same detections are 0.50 times"),
        (altered(lambda n, b, s, c: (b, s, 1 - c)), "0 of the baseline's 20 detections"),
        (altered(lambda n, b, s, c: (b, s, 5 if n < 2 else c)), "18 of the baseline's"),
        (altered(lambda n, b, s, c: (tuple(np.add(b, (0, 2, 0, 2))), s, c)), "shifted by 10.0%"),
        ([[*BASE[0], *[((300, 300, 320, 320), 0.9, 0)] * 3], []], "3 detections are new"),
        (altered(lambda n, b, s, c: (b, s * (0.5 if c and n < 6 else 1), c)), None),
    ],
    ids=["lost", "halved", "all classes", "two", "shifted", "new", "three of ten"],
)
def test_changed_detections_are_a_doubt(mine, said):
    _, doubtful = change_of(mine)
    assert (said in doubtful.reason) if said else (doubtful is None)


# Five of class 2 in one image of twenty, and one of class 1 beside three of class 0 in five others.
MANY = [[(box, 0.8, n % 4 == 3) for n, box in enumerate(BOXES[: 4 if i < 5 else 3])] for i in range(19)]
MANY.append([(box, 0.8, 2) for box in BOXES[:5]])


@pytest.mark.parametrize(
    ("quartered", "classes"),
    [
        (lambda i, label: label == 1, [(1, 0, 5)]),
        (lambda i, label: label == 1 and i < 2, []),
        (lambda i, label: label == 2, []),  # one image: chance takes such from honest models
        (lambda i, label: True, []),  # no class more than the others
        (lambda i, label: label == 1 or i % 2, []),
    ],
    ids=["a class", "two of five", "all of one image", "all", "half of the images"],
)
def test_a_class_is_named_where_the_others_do_not_explain_its_loss(quartered, classes):
    mine = [
        [(box, s / 4 if quartered(i, label) else s, label) for box, s, label in image]
        for i, image in enumerate(MANY)
    ]
    change, doubtful = change_of(mine, MANY)
    assert list(change.classes) == classes
    if classes:
        assert "of class 1 0 of 5 are left" in doubtful.reason


def test_a_weak_detection_that_falls_below_the_limit_is_still_there():
    base = [[(box, 0.26, 0) for box in BOXES]]
    change, doubtful = change_of([[(box, 0.24, 0) for box in BOXES]], base)
    assert (change.same, doubtful) == (20, None)
    # What the baseline sees, too, if less surely, is not new.
    more = [*base[0], ((300, 300, 340, 340), 0.24, 0)]
    assert change_of([[*base[0], ((300, 300, 340, 340), 0.27, 0)]], [more])[0].new == 0


def test_each_detection_is_matched_once_and_rather_with_its_class():
    base = [[((0, 0, 10, 10), 0.9, 0), ((0, 0, 10, 11), 0.8, 1)]]
    mine = [[((0, 0, 10, 11), 0.8, 0), ((0, 0, 10, 10), 0.7, 1)]]
    assert change_of(mine, base)[0].same == 2
    assert change_of([mine[0][:1]], base)[0].same_place == 1


def test_the_scope_of_an_acceptance_is_said():
    change, _ = change_of(BASE)
    error = OutputError(finite=True, constant=False, samples=2, detections=change)
    assert (
        "on 2 images 20 of the baseline's 20 detections with a score of 0.25 or more are the same"
        in scope(error)
    )
    nothing = DetectionChange(images=3, score=0.25, confident=0, same_place=0, same=0, new=0)
    error = error.model_copy(update={"detections": nothing})
    assert "on 3 images the baseline has no detection with a score of 0.25" in scope(error)
    assert "on 2 samples" in scope(error.model_copy(update={"detections": None}))


def test_what_is_no_detection_has_no_records():
    assert records(None) == {}
    assert records([np.zeros(3)]) == {}
    empty = found([], [])
    assert [len(each) for each in empty] == [0] * 4
    assert compare(empty, empty, 2, 0.0).confident == 0


def test_a_dead_part_is_rejected_with_labels_and_without(evaluate):
    base = evaluate(lambda x: {"y": x, "boxes": np.tile(x * 640, (1, 2))})
    mine = evaluate(lambda x: {"y": x, "boxes": np.concatenate([x * 640, x * 0 + 7], axis=1)})
    judged = accuracy.compare(mine, base)
    for labelled in (judged, judged.model_copy(update={"metric": None, "value": None, "drop": None})):
        verdict = accuracy.verdicts(labelled, None)[0]
        assert (verdict.name, verdict.outcome, verdict.blocking) == ("outputs", "reject", True)
        assert "output 'boxes'" in verdict.reason
        assert "constant along dimension 1 (3, 4, 5)" in verdict.reason
