"""Outputs of detectors of every layout become the same detections, and what is none is refused."""

import numpy as np
import pytest
from plain_network import Network, Samples

from optcli import accuracy, data
from optcli.accuracy import decoding
from optcli.accuracy.metrics import Predictions
from optcli.accuracy.verdicts import verdicts
from optcli.errors import InputError
from optcli.outputs import postprocess, suppression
from optcli.sample import Sample
from optcli.settings import TensorSpec
from optcli.settings.accuracy import AccuracySettings
from optcli.settings.postprocess import PostprocessSettings

SIZE = (100, 200)
BOXES = np.array([[20, 10, 60, 50], [100, 40, 180, 80], [0, 0, 30, 30]], np.float32)
SCORES = np.array([0.9, 0.6, 0.3], np.float32)
LABELS = np.array([1, 0, 2])
NAMED = {"boxes": {"boxes": "boxes", "scores": "scores", "labels": "labels"}}


def step(classes=None, **settings):
    return decoding.make(PostprocessSettings.model_validate(settings), None, classes)


def found(how, outputs, images=1, classes=None):
    """The detections of the images of one call."""
    seen = Predictions(["id"] * images, [None] * images, [{}] * images, outputs)
    return decoding.decode(step(classes, **how), seen, SIZE)


def texts_of(detector):
    """What it noted, in words."""
    return [decoding.note_text(each) for each in decoding.notes(detector.noted)]


def advised(comparison, **more):
    """The verdicts on the decoding."""
    answers = verdicts(comparison, AccuracySettings(metric="map"), **more)
    return [each for each in answers if each.name == "decoding"]


def assert_all(detections, count=3):
    assert np.allclose(detections["boxes"], BOXES[:count], atol=1e-4)
    assert np.allclose(detections["scores"], SCORES[:count], atol=1e-6)
    assert detections["labels"].tolist() == LABELS[:count].tolist()


# --- one image, or a batch --------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 2, 3])
@pytest.mark.parametrize("batch", [False, True])
def test_the_rows_belong_to_the_image_whatever_their_number(count, batch):
    rows = {"boxes": BOXES[:count], "scores": SCORES[:count], "labels": LABELS[:count]}
    outputs = {name: array[None] if batch else array for name, array in rows.items()}
    (detections,) = found(NAMED, outputs)
    assert_all(detections, count)


def test_each_image_of_a_batch_has_its_own_rows():
    outputs = {
        "boxes": np.stack([BOXES[:1], BOXES[1:2]]),
        "scores": np.array([[0.9], [0.6]], np.float32),
        "labels": np.array([[1], [0]]),
    }
    first, second = found(NAMED, outputs, images=2)
    assert_all(first, 1)
    assert second["boxes"].tolist() == BOXES[1:2].tolist()
    with pytest.raises(InputError, match=r"shape \[1, 4\]: no row for each image"):
        found(NAMED, {name: array[0] for name, array in outputs.items()}, images=2)
    with pytest.raises(InputError, match="1 boxes, 1 scores and 2 labels"):
        found(NAMED, {"boxes": BOXES[:1], "scores": SCORES[:1], "labels": LABELS[:2]})


@pytest.mark.parametrize("declared", [(), ("rows",)])
def test_code_of_the_users_gets_all_rows_of_the_image(evaluate, tmp_path, monkeypatch, declared):
    """A model that takes one image: its file declares that the rows vary, or other images show it."""
    code = "def decode(outputs, meta):\n    assert outputs['rows'].ndim == 2\n"
    (tmp_path / "own.py").write_text(f"{code}    return [len(outputs['rows']), outputs['one'][0]]\n")
    monkeypatch.setattr(Network, "without_batch", lambda _: frozenset(declared), raising=False)
    samples = Samples(6)
    samples.x[:, 0] = [1, 3, 0, 1, 2, 1]
    mean = "def mean(outputs, target, meta):\n    return outputs[0] + 10 * outputs[1]\n"
    (tmp_path / "own.py").write_text((tmp_path / "own.py").read_text() + mean)
    evaluated = evaluate(
        lambda x: {"rows": np.zeros((int(x[0, 0]), 4), np.float32), "one": x[:, :1]},
        samples,
        AccuracySettings(metric="python:own.py:mean"),
        TensorSpec(name="x", shape=(1, 3)),
        postprocess=PostprocessSettings.model_validate("python:own.py:decode"),
    )
    assert evaluated.value == pytest.approx(11 * 8 / 6)


def test_one_row_is_no_vector_of_scores_of_the_image(evaluate, monkeypatch):
    """Where every image of the set has one detection, its box is not the scores of four classes."""
    monkeypatch.setattr(Network, "without_batch", lambda _: {"boxes"}, raising=False)
    evaluated = evaluate(
        lambda x: {"boxes": BOXES[:1] * x[0, 0], "scores": x},
        settings=AccuracySettings(output="scores"),
        spec=TensorSpec(name="x", shape=(1, 3)),
    )
    shapes = {output.name: output.shape for output in evaluated.outputs}
    assert shapes == {"boxes": None, "scores": (3,)}


# --- rows that are detections -----------------------------------------------------------------------


def rows_of(*columns):
    parts = {"box": BOXES, "score": SCORES[:, None], "class": LABELS[:, None], "zero": [[0]] * 3}
    parts["far"] = [[31.5]] * 3
    return np.concatenate([parts[name] for name in columns], axis=1).astype(np.float32)


def padded(rows, value=0.0):
    return np.concatenate([rows, np.full((4, rows.shape[1]), value, np.float32)])


@pytest.mark.parametrize("batch", [False, True])
def test_rows_of_six(batch):
    rows = padded(rows_of("box", "score", "class"))
    (detections,) = found({"rows": {}}, {"output0": rows[None] if batch else rows})
    assert_all(detections)
    (detections,) = found({"rows": {}}, {"output0": rows[:1]})
    assert_all(detections, 1)


def test_rows_of_ssd_name_their_image():
    how = {
        "rows": {"columns": ["image", "class", "score", "box"], "normalized": True, "first_label": 1}
    }
    rows = rows_of("zero", "class", "score", "box")
    rows[:, 1] += 1
    rows[:, 3:] /= [200, 100, 200, 100]
    ends = padded(rows, -1)
    for outputs in (rows, rows[None], ends[None, None], ends):
        assert_all(found(how, {"d": outputs})[0])
    second = rows[:1].copy()
    second[0, 0] = 1
    both = np.concatenate([rows, second, ends[3:]])
    for outputs in (both, both[None, None]):  # the rows of all images one below the other
        one, two = found(how, {"d": outputs}, images=2)
        assert_all(one)
        assert_all(two, 1)
    one, two = found(how, {"d": np.stack([ends, ends])}, images=2)  # counted in each image anew
    assert_all(one)
    assert_all(two)


def test_what_stands_behind_the_columns_is_left_out_and_said():
    how = {"rows": {}}
    detector = step(**how)
    assert_all(detector({"o": rows_of("box", "score", "class", "far", "far")}, {}, SIZE))
    (said,) = texts_of(detector)
    assert "more numbers than `columns` names" in said
    with pytest.raises(InputError, match="wanted rows of 6: box, score, class"):
        found(how, {"o": rows_of("box", "score")})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rows": {"columns": ["box", "score"]}}, "wanted box, score and class once each"),
        ({"rows": {"columns": ["box", "score", "class", "class"]}}, "once each"),
        ({"rows": {"columns": ["image", "image", "box", "score", "class"]}}, "once each"),
        ({"rows": {"numbering": "coco", "first_label": 1}}, "first_label beside numbering: coco"),
        ({"boxes": {"numbering": "coco", "first_label": 1}}, "first_label beside numbering: coco"),
        ({"rows": {}, "boxes": {}}, "wanted one of yolox, boxes, rows and python"),
    ],
)
def test_settings_that_do_not_go_together(settings, message):
    with pytest.raises(ValueError, match=message):
        PostprocessSettings.model_validate(settings)


# --- logits, and what stands behind the classes -----------------------------------------------------


def centred(boxes):
    extent = boxes[:, 2:] - boxes[:, :2]
    return np.concatenate([boxes[:, :2] + extent / 2, extent], axis=1)


def logits_of(width, background=False):
    """Logits `[queries, classes]` of the three objects, and of a query that sees none."""
    logits = np.full((4, width), -9.0, np.float32)
    shares = np.append(SCORES, 0.001)
    logits[np.arange(4), [*LABELS, 0]] = np.log(shares / (1 - shares))
    if background:  # softmax over two that count: the class and the background
        logits = np.where(logits == -9, -30, logits).astype(np.float32)
        logits[:, -1] = 0
    return logits


def test_rt_detr_takes_the_best_of_all_queries_and_classes():
    boxes = centred(np.concatenate([BOXES, BOXES[:1]])) / [200, 100, 200, 100]
    outputs = {"logits": logits_of(3)[None], "pred_boxes": boxes[None].astype(np.float32)}
    how = {"boxes": "pred_boxes", "scores": "logits", "format": "cxcywh", "normalized": True}
    assert_all(found({"boxes": {**how, "activation": "sigmoid"}}, outputs)[0])
    two = {**how, "activation": "sigmoid", "score": 0, "max_detections": 2}
    assert_all(found({"boxes": two}, outputs)[0], 2)
    # One query may be several objects.
    outputs["logits"][0, 0, 2] = 0.0
    several = found({"boxes": {**two, "max_detections": 9, "score": 0.4}}, outputs)[0]
    assert several["labels"].tolist() == [1, 0, 2]
    assert several["boxes"][2] == pytest.approx(BOXES[0], abs=1e-4)


def test_detr_leaves_out_the_last_class_and_takes_the_best_of_a_query():
    boxes = centred(np.concatenate([BOXES, BOXES[:1]])) / [200, 100, 200, 100]
    outputs = {"logits": logits_of(4, background=True), "pred_boxes": boxes.astype(np.float32)}
    how = {"boxes": "pred_boxes", "scores": "logits", "format": "cxcywh", "normalized": True}
    how |= {"activation": "softmax", "background": "last", "multi_label": False}
    assert_all(found({"boxes": how}, outputs)[0])


@pytest.mark.parametrize("transposed", [False, True])
def test_columns_behind_the_classes_are_left_out(transposed):
    """Mask coefficients, keypoints and angles may be anything."""
    scores = np.zeros((3, 3), np.float32)
    scores[np.arange(3), LABELS] = SCORES
    behind = np.full((3, 32), 7.5, np.float32)
    rows = np.concatenate([BOXES, scores, behind], axis=1)
    output = {"o": (rows.T if transposed else rows)[None]}
    how = {"transposed": transposed, "score": 0.2}
    assert_all(found({"boxes": {**how, "classes": 3}}, output)[0])
    with pytest.raises(InputError, match=r"score 7\.5, wanted 0 to 1") as caught:
        found({"boxes": how}, output)
    assert "`classes`" in str(caught.value.hint)
    rows = np.concatenate([BOXES, np.ones((3, 1)), scores, behind], axis=1).astype(np.float32)
    assert_all(found({"boxes": {"objectness": True, "classes": 3, "score": 0.2}}, {"o": rows})[0])


def test_objectness_of_logits_is_a_share_by_itself():
    row = np.array([[*BOXES[0], 0.0, 2.0, -9.0]], np.float32)
    for activation in ("sigmoid", "softmax"):
        how = {"objectness": True, "activation": activation, "score": 0.3}
        (detections,) = found({"boxes": how}, {"o": row})
        assert detections["scores"] == pytest.approx(
            [0.44 if activation == "sigmoid" else 0.5], abs=0.01
        )


# --- refusals ---------------------------------------------------------------------------------------


def spoiled(**columns):
    """Rows of six with other numbers in some columns."""
    rows = rows_of("box", "score", "class")
    for name, values in columns.items():
        rows[:, {"score": 4, "label": 5}[name]] = values
    return rows


SIX = spoiled(label=[3, 57, 3])


@pytest.mark.parametrize(
    ("how", "outputs", "classes", "message", "hint"),
    [
        ({"boxes": {}}, {"o": SIX[None]}, None, "the score 57", "`rows: {}`"),
        ({"boxes": {"transposed": True}}, {"o": SIX.T}, None, "the score 57", "`rows: {}`"),
        ({"boxes": {}}, {"o": spoiled(label=[4, 1.5, -3])}, None, "score 4", "`activation: sigmoid`"),
        (
            {"boxes": {"scores": "s"}},
            {"b": BOXES, "s": np.array([[2, -1]] * 3)},
            None,
            "the score 2",
            "the scores are logits",
        ),
        (
            {"boxes": {"scores": "s"}},
            {"b": BOXES, "s": BOXES + 1},
            None,
            "score 181",
            "look at `scores`",
        ),
        ({"boxes": {}}, {"o": np.full((5, 9), 3.0)}, None, "the score 3", "`transposed`"),
        ({"yolox": {"decoded": True}}, {"o": np.full((5, 9), 3.0)}, None, "the score 9", "no YOLOX"),
        ({"rows": {}}, {"o": SIX[:, [0, 1, 2, 3, 5, 4]]}, None, "the score 57", "another order"),
        ({"rows": {}}, {"o": spoiled(label=0.4)}, None, "class number 0.4", "another column"),
        (
            {"rows": {}},
            {"o": spoiled(label=-2)},
            None,
            "class number -2",
            "marks rows that hold nothing",
        ),
        ({"rows": {"first_label": 1}}, {"o": spoiled()}, 3, "class number -1", "0 is the background"),
        ({"rows": {}}, {"o": spoiled(label=3)}, 3, "3 classes, from 0", "`first_label: 1`"),
        ({"rows": {}}, {"o": spoiled(label=90)}, 80, "class number 90", "`numbering: coco`"),
        ({"rows": {}}, {"o": spoiled(label=90)}, 20, "class number 90", "ids with gaps"),
        ({"rows": {"first_label": 1}}, {"o": spoiled(label=13)}, 3, "number 12", "ids with gaps"),
        ({"rows": {"numbering": "coco"}}, {"o": spoiled(label=91)}, 80, "number 91", "1 to 90"),
        ({"boxes": {}}, {"o": np.full((5, 9), 0.5)}, 4, "class number 4", "`first_label: 1`"),
        (
            NAMED,
            {"boxes": BOXES, "scores": SCORES, "labels": LABELS + 9},
            3,
            "number 11",
            "other classes",
        ),
    ],
)
def test_what_is_no_score_and_no_class_is_refused_with_what_it_probably_is(
    how, outputs, classes, message, hint
):
    with pytest.raises(InputError, match=message) as caught:
        found(how, outputs, classes=classes)
    assert hint in str(caught.value.hint)
    assert caught.value.place == f"postprocess.{next(iter(how))}"


def test_what_rounding_makes_of_scores_and_classes_is_let_pass():
    rows = spoiled(score=[256 / 255, 0.6, 0.3], label=LABELS + 0.1)
    (detections,) = found({"rows": {}}, {"o": padded(rows, -1)}, classes=3)
    assert detections["labels"].tolist() == LABELS.tolist()
    rows[1, 4], rows[2, 5] = np.nan, np.inf  # broken, and said elsewhere
    (detections,) = found({"rows": {}}, {"o": rows}, classes=3)
    assert detections["labels"].tolist() == [1]


def test_classes_by_the_ids_of_coco():
    rows = spoiled(label=[1, 90, 12])  # person, toothbrush, and an id that COCO does not use
    (detections,) = found({"rows": {"numbering": "coco"}}, {"o": rows}, classes=80)
    assert detections["labels"].tolist() == [0, 79]
    rows = spoiled(label=[11, 13, 44])
    (detections,) = found({"rows": {"numbering": "coco"}}, {"o": rows}, classes=80)
    assert detections["labels"].tolist() == [10, 11, 39]


def nowhere(*_):
    raise InputError("no such data on this machine, which has the prepared samples")


def test_the_classes_of_the_data_are_known_to_the_decoding(evaluate, monkeypatch):
    monkeypatch.setattr(data, "class_names", lambda *_: ("one", "two"))

    class Targets(Samples):
        def __getitem__(self, index):
            target = {"boxes": BOXES[:1], "labels": [0]}
            return Sample(self.ids[index], {"x": self.x[index]}, target, {"image_id": index})

    how = {"spec": TensorSpec(name="x", shape=(1, 3)), "samples": Targets(4)}
    how |= {"settings": AccuracySettings(metric="map")}
    how |= {"postprocess": PostprocessSettings.model_validate({"rows": {"max_detections": 1}})}
    good = spoiled(label=[0, 1, 1])
    evaluated = evaluate(lambda x: {"o": good[None]}, **how)
    assert evaluated.value == pytest.approx(1)
    (note,) = evaluated.decoding
    assert (note.kind, note.images, note.figures) == ("max_detections", 4, (1,))
    itself = accuracy.compare(evaluated, evaluated)
    (advice,) = advised(itself, is_baseline=True)
    assert not advice.blocking
    assert "of 4 images only the best 1 detections count" in advice.reason
    assert advice.outcome == "inconclusive"
    # Where it leaves something out of a few images it is told, and is no doubt.
    (told,) = advised(itself.model_copy(update={"samples": 100}), is_baseline=True)
    assert (told.outcome, told.reason) == ("accept", advice.reason)
    assert not advised(itself)
    with pytest.raises(InputError, match="class number 2, and there are 2 classes"):
        evaluate(lambda x: {"o": spoiled(label=2)[None]}, **how, reference=True)
    # A variant whose outputs broke is no fault of the recipe: it is judged.
    broken = spoiled(label=[7, 0, 0.5], score=[2.5, 1.5, 0.6])
    variant = evaluate(lambda x: {"o": broken[None]}, **how)
    assert variant.value == 0
    monkeypatch.setattr(data, "class_names", nowhere)
    evaluated = evaluate(lambda x: {"o": spoiled(label=2)[None]}, **how, reference=True)
    assert evaluated.value == 0
    (advice,) = advised(accuracy.compare(variant, evaluated))
    assert "in 4 images there are scores above 1" in advice.reason


@pytest.mark.parametrize(
    ("how", "classes", "said"),
    [
        ({}, 2, 0),
        ({}, 3, 1),
        ({"first_label": 1}, 3, 0),
        ({"background": "last", "score": 0.5}, 1, 0),
        ({"numbering": "coco"}, 80, 0),
        ({}, None, 0),
    ],
)
def test_a_model_of_other_classes_than_the_data_is_noted(how, classes, said):
    """Rows of six whose classes are 0 and 1 look like scores of two classes."""
    detector = step(classes, boxes=how)
    detector({"o": rows_of("box", "score", "zero")}, {}, SIZE)
    texts = texts_of(detector)
    assert len(texts) == said
    assert all("the model has 2 classes and the data have 3" in text for text in texts)


# --- NMS and its limits -----------------------------------------------------------------------------


def crowded(count, classes, seed=0):
    """Boxes that overlap, sorted by scores of which many are equal."""
    draw = np.random.default_rng(seed)
    corner = draw.uniform(0, 60, (count, 2))
    boxes = np.concatenate([corner, corner + draw.uniform(5, 30, (count, 2))], 1).astype(np.float32)
    return boxes, -np.sort(-np.round(draw.random(count), 1)), draw.integers(0, classes, count)


def one_by_one(boxes, labels, threshold):
    """Greedy NMS as its definition says."""
    stay = []
    for index, (left, top, right, bottom) in enumerate(boxes):
        for other in stay:
            x1, y1, x2, y2 = boxes[other]
            width, height = min(right, x2) - max(left, x1), min(bottom, y2) - max(top, y1)
            shared = max(np.float32(0), width) * max(np.float32(0), height)
            union = (right - left) * (bottom - top) + (x2 - x1) * (y2 - y1) - shared
            if labels[index] == labels[other] and shared / union > threshold:
                break
        else:
            stay.append(index)
    return stay


@pytest.mark.parametrize("classes", [1, 4])
def test_nms_is_that_of_the_definition_and_stops_at_the_limit(classes):
    boxes, _, labels = crowded(150, classes)
    wanted = one_by_one(boxes, labels, 0.3)
    for most in (1, 7, len(wanted) - 1, len(wanted), 1000):
        stay, more = suppression.suppressed(boxes, labels, 0.3, most)
        assert stay.tolist() == wanted[:most]
        assert more == (most < len(wanted))


def test_an_overlap_of_just_the_threshold_stays():
    boxes = np.array([[0, 0, 10, 10], [0, 0, 10, 5], [0, 0, 0, 0], [0, 0, 0, 0]], np.float32)
    for threshold, stays in ((0.5, [0, 1, 2, 3]), (0.499, [0, 2, 3])):
        assert suppression.suppressed(boxes, np.zeros(4, int), threshold, 9)[0].tolist() == stays


def test_the_best_candidates_go_into_nms_in_order_and_limits_are_said_once():
    """All scores equal, as of a network that nobody trained: the first candidates count."""
    boxes = np.array([[10 * place, 0, 10 * place + 8, 8] for place in range(20)], np.float32)
    scores = np.full((20, 2), 0.5, np.float32)
    scores[15, 1] = 0.8
    how = {"boxes": {"scores": "s", "nms": 0.5, "max_candidates": 5, "max_detections": 3}}
    detector = step(**how)
    for _ in range(2):
        detections = detector({"b": boxes, "s": scores}, {}, SIZE)
        assert detections["boxes"][:, 0].tolist() == [150, 0, 0]
        assert detections["labels"].tolist() == [1, 0, 1]
    assert texts_of(detector) == [
        "of 2 images only the best 5 candidates for NMS count (`max_candidates` of `postprocess`)",
        "of 2 images only the best 3 detections count (`max_detections` of `postprocess`)",
    ]
    few = step(boxes={"scores": "s", "nms": 0.5})
    assert len(few({"b": boxes, "s": scores}, {}, SIZE)["boxes"]) == 40
    assert not few.noted


# --- boxes that are the original's already ------------------------------------------------------------


@pytest.mark.parametrize(("original", "moved"), [(None, True), (False, True), (True, False)])
def test_boxes_in_pixels_of_the_original_are_not_brought_back_again(original, moved):
    meta = {"original_size": (500, 1000), "scale": (2.0, 2.0), "padding": (10, 20)}
    shift = np.array([20, 10, 20, 10])
    expected = (BOXES - shift) / 2 if moved else BOXES
    rows = np.concatenate([BOXES, SCORES[:, None], LABELS[:, None]], axis=1)[None]
    outputs = {"boxes": BOXES[None], "scores": SCORES[None], "labels": LABELS[None]}
    for how, given in (
        ({"boxes": {**NAMED["boxes"], "original": original}}, outputs),
        ({"rows": {"original": original}}, {"rows": rows}),
    ):
        detector = step(**how)
        assert np.allclose(detector(given, meta, SIZE)["boxes"], expected)
        kind, settings = PostprocessSettings.model_validate(how).detector
        served = {"schema": 1, "kind": kind, kind: settings, "names": None, "size": list(SIZE)}
        answer = postprocess.Postprocess(served).answer(given, meta)
        # A box of an answer ends where its image does.
        assert np.allclose([box["box"] for box in answer["boxes"]], np.maximum(expected, 0))


def test_a_box_of_an_answer_ends_where_its_image_does():
    """Padding is none of the image, and rounding leaves places such as 2.6e-15 beside its edge."""
    kind, settings = PostprocessSettings.model_validate(
        {"boxes": {"boxes": "boxes", "scores": "scores", "nms": None}}
    ).detector
    served = {"schema": 1, "kind": kind, kind: settings, "names": None, "size": [40, 40]}
    meta = {"original_size": [20, 40], "scale": [1.0, 1.0], "padding": [10, 0]}
    boxes = np.array([[[-5, 5, 45, 35], [2, 12, 8, 18], [0, 0, 40, 10]]], np.float32)
    given = {"boxes": boxes, "scores": np.array([[[0.9], [0.8], [0.7]]], np.float32)}
    answer = postprocess.Postprocess(served).answer(given, meta)
    # The third lies in the padding alone.
    assert [each["box"] for each in answer["boxes"]] == [[0, 0, 40, 20], [2, 2, 8, 8]]
    assert [round(each["score"], 3) for each in answer["boxes"]] == [0.9, 0.8]


def test_boxes_cannot_be_fractions_and_pixels_of_the_original():
    with pytest.raises(ValueError, match="original beside normalized"):
        step(boxes={"normalized": True, "original": True})
