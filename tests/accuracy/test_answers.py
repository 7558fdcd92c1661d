"""Answers of other machines: outputs, COCO's results and classes, each as one more variant."""

import json
import re

import numpy as np
import pytest
from plain_network import Samples

from optcli import accuracy, data
from optcli.accuracy.evaluation import AnswersFile
from optcli.errors import InputError, TrustError
from optcli.sample import Sample
from optcli.settings.accuracy import AccuracySettings

OUTPUTS = (("y", (3,)),)
BAR = AccuracySettings(max_drop=0.1)


@pytest.fixture
def judged(evaluate, tmp_path, monkeypatch):
    """Judge a file against the network that gives its inputs."""

    def run(path, samples=None, *, settings=BAR, partial=False, outputs=OUTPUTS, names=None):
        monkeypatch.setattr(data, "class_names", lambda *_: names)
        samples = samples or Samples()
        file = tmp_path / path
        base = evaluate(samples=samples, settings=settings, answered=file if partial else None)
        given = evaluate(
            lambda x: 1 / 0,  # nobody runs it
            samples=samples,
            settings=settings,
            answers=AnswersFile(file, partial=partial, outputs=outputs),
        )
        found = accuracy.compare(given, base)
        return found, {v.name: v.outcome for v in accuracy.verdicts(found, settings)}

    return run


def refused(judged, path, message, **more):
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        judged(path, **more)
    assert path in caught.value.place
    assert caught.value.hint


# Outputs


@pytest.mark.parametrize("form", ["ids", "by sample", "another name", "a dimension of 1", "shuffled"])
def test_outputs_of_another_machine_are_one_more_variant(judged, tmp_path, form):
    samples = Samples()
    rows, ids = samples.x, np.array(samples.ids)
    if form == "by sample":
        np.savez(tmp_path / "a.npz", **dict(zip(samples.ids, rows, strict=True)))
    elif form == "another name":
        np.savez(tmp_path / "a.npz", id=ids, **{"conv41/out:0": rows})
    elif form == "a dimension of 1":
        np.savez(tmp_path / "a.npz", ids=ids, y=rows[:, None, :, None])
    else:
        order = np.random.default_rng(1).permutation(10) if form == "shuffled" else np.arange(10)
        np.savez(tmp_path / "a.npz", ids=ids[order], y=rows[order])
    found, outcomes = judged("a.npz")
    assert (found.value, found.baseline, found.regressed) == (1.0, 1.0, 0)
    assert found.output_error.max_abs == 0
    assert (outcomes["outputs"], outcomes["accuracy"]) == ("accept", "accept")
    rows = -rows
    np.savez(tmp_path / "worse.npz", ids=ids, y=rows)
    found, outcomes = judged("worse.npz")
    assert found.regressed == 10
    assert outcomes["accuracy"] == "reject"


def test_samples_without_an_answer_are_counted_and_refused(judged, tmp_path):
    samples = Samples()
    np.savez(tmp_path / "a.npz", ids=np.array(samples.ids[:6]), y=samples.x[:6])
    refused(judged, "a.npz", "4 of 10 samples have no answer: sample-6, sample-7, sample-8, ...")


@pytest.mark.parametrize("chosen", [range(3), range(4, 9), [0, 9]])
def test_a_part_is_judged_on_the_samples_that_are_there(judged, tmp_path, chosen):
    wrong = [(label + index % 2) % 3 for index, label in enumerate(Samples().labels)]
    samples = Samples(labels=wrong)
    rows = samples.x[list(chosen)]
    np.savez(tmp_path / "a.npz", ids=np.array(samples.ids)[list(chosen)], y=rows)
    found, _ = judged("a.npz", samples, partial=True)
    right = np.mean([index % 2 == 0 for index in chosen])
    assert (found.samples, found.value, found.baseline) == (len(chosen), right, right)
    assert found.output_error.samples == len(chosen)
    assert found.output_error.max_abs == 0


def test_outputs_that_are_not_written_are_not_compared(judged, tmp_path):
    samples = Samples()
    np.savez(tmp_path / "a.npz", ids=np.array(samples.ids), y=samples.x)
    found, _ = judged("a.npz", outputs=(("y", (3,)), ("z", (7,))))
    assert found.value == 1.0


def bad_arrays(folder):
    ids, x = np.array(Samples().ids), Samples().x
    np.savez(folder / "shape.npz", ids=ids, y=np.zeros((10, 7)))
    np.savez(folder / "rows.npz", ids=ids, y=x[:4])
    np.savez(folder / "name.npz", ids=ids, a=x, b=x)
    np.savez(folder / "text.npz", ids=ids, y=np.array([["a"] * 3] * 10))
    np.savez(folder / "twice.npz", ids=np.array(["sample-0", "sample-0"]), y=x[:2])
    np.savez(folder / "unknown.npz", ids=np.array([*Samples().ids[:9], "other"]), y=x)
    np.savez(folder / "alone.npz", ids=ids)
    np.savez(folder / "no_ids.npz", y=x)
    np.savez(folder / "shapes.npz", **{"sample-0": x[0], "sample-1": x[0, :2]})
    (folder / "cut.npz").write_bytes(b"PK\x03\x04 and no more")
    (folder / "answers.txt").write_text("none")
    (folder / "folder.npz").mkdir()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("shape.npz", "a sample of output 'y' has the shape [7], the baseline's [3]"),
        ("rows.npz", "output 'y' has 4 rows, and there are 10 ids"),
        ("name.npz", "the baseline has no output 'a', it has y"),
        ("text.npz", "output 'y' holds <U1 values"),
        ("twice.npz", "sample 'sample-0' has two answers"),
        ("unknown.npz", "1 of 10 answers are for no sample of the evaluation set: other"),
        ("alone.npz", "the file has ids and no output"),
        ("shapes.npz", "without an array `ids` each array is a sample's output: found [2] and [3]"),
        ("no_ids.npz", "each array is a sample's output: found [10, 3], not [3]"),
        ("cut.npz", "not an npz file"),
        ("answers.txt", "found the suffix '.txt'"),
        ("folder.npz", "cannot be read: found a folder"),
        ("gone.npz", "cannot be read: No such file"),
    ],
)
def test_outputs_that_do_not_fit_are_named(judged, tmp_path, name, message):
    bad_arrays(tmp_path)
    refused(judged, name, message)


def test_pickled_outputs_are_refused(judged, tmp_path):
    np.savez(tmp_path / "a.npz", ids=np.array(Samples().ids), y=np.array([{}] * 10, object))
    with pytest.raises(TrustError, match="is pickled"):
        judged("a.npz")


def test_outputs_that_are_no_numbers_are_rejected(judged, tmp_path):
    rows = Samples().x.copy()
    rows[3] = np.nan
    np.savez(tmp_path / "a.npz", ids=np.array(Samples().ids), y=rows)
    _, outcomes = judged("a.npz")
    assert outcomes["outputs"] == "reject"


def test_files_are_known_by_their_names_where_these_are_one_samples(judged, tmp_path):
    samples = Samples(ids=[f"class/{n}.jpg" for n in range(10)])
    np.savez(tmp_path / "stems.npz", ids=np.array([str(n) for n in range(10)]), y=samples.x)
    assert judged("stems.npz", samples)[0].value == 1.0
    np.savez(tmp_path / "names.npz", ids=np.array([f"{n}.jpg" for n in range(10)]), y=samples.x)
    assert judged("names.npz", samples)[0].value == 1.0
    twice = Samples(ids=[f"{'ab'[n % 2]}/{n // 2}.jpg" for n in range(10)])
    np.savez(tmp_path / "twice.npz", ids=np.array([f"{n}.jpg" for n in range(5)]), y=samples.x[:5])
    refused(judged, "twice.npz", "fits two samples: a/0.jpg, b/0.jpg", samples=twice)


# Classes


def table(path, head, rows):
    path.write_text("\ufeff" + "\r\n".join(",".join(map(str, row)) for row in [head, *rows]) + "\r\n")


def ranked():
    return np.argsort(-Samples().x, axis=1)


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("head", [("file", "class"), ("ID", "Prediction"), ("image", "top1", "top2")])
def test_classes_of_another_machine_are_one_more_variant(judged, tmp_path, head, by_name):
    names = ("cat", "dog", "eel")
    order = ranked()[:, : len(head) - 1]
    cells = np.array(names)[order] if by_name else order
    table(tmp_path / "a.csv", head, [(n, *row) for n, row in zip(Samples().ids, cells, strict=True)])
    found, outcomes = judged("a.csv", names=names)
    assert (found.value, found.regressed, found.agreement) == (1.0, 0, 1.0)
    assert "calibration_error" not in found.figures
    assert found.scores is None
    assert (outcomes["outputs"], outcomes["accuracy"]) == ("accept", "accept")
    other = [
        (n, (int(row[0]) + (k == 2)) % 3)
        for k, (n, row) in enumerate(zip(Samples().ids, order, strict=True))
    ]
    table(tmp_path / "b.csv", ("id", "class"), other)
    assert judged("b.csv")[0].regressed == 1


def test_a_score_gives_the_calibration_error(judged, tmp_path):
    x = Samples().x.astype(float)
    soft = (np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)).max(axis=1)
    rows = [(n, row[0], s) for n, row, s in zip(Samples().ids, ranked(), soft, strict=True)]
    table(tmp_path / "a.csv", ("id", "class", "score"), rows)
    found, _ = judged("a.csv")
    figure = found.figures["calibration_error"]
    assert figure.value == pytest.approx(figure.baseline)


@pytest.mark.parametrize(
    ("head", "row", "message"),
    [
        (("id", "class"), ("sample-0", 3), "class 3 is out of range: there are 3 classes, 0 to 2"),
        (("id", "class"), ("sample-0", "gnu"), "found the class 'gnu', wanted a class number"),
        (("id", "class"), ("sample-0", "-1"), "found the class '-1', wanted a class number"),
        (("id", "class"), ("sample-0",), "found 1 cells, wanted 2"),
        (("id", "value"), ("sample-0", 1), "found the first line 'id,value'"),
        (("0", "1"), ("sample-0", 1), "found the first line '0,1'"),
        (("id", "class", "score"), ("sample-0", 1, 1.2), "found the score '1.2', wanted a probability"),
        (("id", "class", "score"), ("sample-0", 1, "nan"), "found the score 'nan'"),
        (("id", "class"), ("sample-0", '"1'), "this is no CSV"),
        (
            ("id", "class"),
            ("sample-99", 1),
            "answers are for no sample of the evaluation set: sample-99",
        ),
    ],
)
def test_classes_that_do_not_fit_are_named(judged, tmp_path, head, row, message):
    table(tmp_path / "a.csv", head, [row])
    refused(judged, "a.csv", message)


def test_names_that_are_numbers_of_other_classes_are_no_names(judged, tmp_path):
    rows = [(n, row[0]) for n, row in zip(Samples().ids, ranked(), strict=True)]
    table(tmp_path / "a.csv", ("id", "class"), rows)
    refused(judged, "a.csv", "a class number itself", names=("1", "0", "2"))


def test_metrics_that_want_more_than_classes_say_so(judged, tmp_path):
    table(tmp_path / "a.csv", ("id", "class"), [(n, 0) for n in Samples().ids])
    for metric, message in (
        ("top5", "top5 wants 5 classes a row, found 1"),
        ("calibration_error", "calibration_error wants a score in every row"),
        ("knn", "these are classes, and knn reads more than classes"),
    ):
        options = {"k": 1} if metric == "knn" else {}
        settings = AccuracySettings(metric=metric, options=options)
        refused(judged, "a.csv", message, settings=settings, samples=Samples(labels=[0, 1] * 5))


def test_without_labels_classes_can_only_agree(judged, tmp_path):
    rows = [(n, row[0]) for n, row in zip(Samples().ids, ranked(), strict=True)]
    table(tmp_path / "a.csv", ("id", "class"), rows)
    found, outcomes = judged("a.csv", Samples(labels=[None] * 10), settings=None)
    assert (found.metric, found.agreement) == (None, 1.0)
    assert outcomes == {"outputs": "inconclusive"}


# Detections


class Photos:
    """Four images with a box each, of two classes; the baseline's detections are the boxes."""

    def __init__(self):
        self.boxes = np.array([[10, 10, 40, 50], [5, 5, 20, 20], [0, 0, 9, 9], [30, 1, 60, 31]], float)
        self.labels = [0, 1, 0, 1]

    def __len__(self):
        return 4

    def __getitem__(self, index):
        target = {"boxes": self.boxes[[index]], "labels": np.array([self.labels[index]])}
        return Sample(
            f"{index}.jpg", {"x": np.full(3, index, np.float32)}, target, {"image_id": index + 7}
        )


def results(**changes):
    photos = Photos()
    entries = []
    for index, (box, label) in enumerate(zip(photos.boxes.tolist(), photos.labels, strict=True)):
        size = [box[2] - box[0], box[3] - box[1]]
        entry = {"image_id": index + 7, "category_id": label, "bbox": [*box[:2], *size], "score": 0.9}
        entries.append({**entry, **changes} if index == 2 else entry)
    return entries


@pytest.fixture
def detected(evaluate, tmp_path, monkeypatch):
    settings = AccuracySettings(metric="map", max_drop=0.1)

    def run(entries, ids=None, partial=False, settings=settings):
        monkeypatch.setattr(data, "class_names", lambda *_: ("a", "b"))
        monkeypatch.setattr(data, "numbers_of_ids", lambda *_: ids or {})
        file = tmp_path / "a.json"
        file.write_text(entries if isinstance(entries, str) else json.dumps(entries))
        return evaluate(samples=Photos(), settings=settings, answers=AnswersFile(file, partial=partial))

    return run


@pytest.mark.slow
def test_detections_of_another_machine_have_their_map(detected):
    assert detected(results()).value == pytest.approx(1.0)
    assert detected(results(category_id=1)).value < 0.9
    assert detected(results(bbox=[1, 1, 3, 3])).value < 0.9
    # Numbers of images may be text, and categories have the data's ids.
    ids = {3: 0, 90: 1}
    renamed = [
        {**e, "image_id": f"{e['image_id'] - 7}.jpg", "category_id": [3, 90][e["category_id"]]}
        for e in results()
    ]
    found = detected(renamed, ids)
    assert found.value == pytest.approx(1.0)
    assert found.remarks == ()


@pytest.mark.slow
def test_an_image_without_detections_has_none_found_or_is_left_out(detected):
    found = detected(results()[1:])
    assert (found.samples, found.value) == (4, pytest.approx(0.75, abs=0.01))
    assert found.remarks == ("the file has no detection in 1 image: nothing was found there",)
    part = detected(results()[1:], partial=True)
    assert (part.samples, part.value, part.remarks) == (3, pytest.approx(1.0), ())


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["mask_map", "keypoint_map"])
def test_masks_and_keypoints_go_where_the_metric_takes_them(detected, monkeypatch, metric):
    from pycocotools import mask

    plain, places = Photos.__getitem__, np.array([[12.0, 13, 2], [20, 30, 2]])

    def shape(box):
        left, top, right, bottom = (int(edge) for edge in box)
        pixels = np.zeros((64, 64), np.uint8)
        pixels[top:bottom, left:right] = 1
        rle = mask.encode(np.asfortranarray(pixels))
        return {"size": rle["size"], "counts": rle["counts"].decode()}

    def item(self, index):
        sample = plain(self, index)
        more = {"segmentation": [shape(self.boxes[index])], "keypoints": places[None]}
        meta = {**sample.meta, "original_size": (64, 64)}
        return Sample(sample.id, sample.inputs, {**sample.target, **more}, meta)

    monkeypatch.setattr(Photos, "__getitem__", item)
    entries = [
        {**entry, "segmentation": shape(box), "keypoints": places.ravel().tolist()}
        for entry, box in zip(results(), Photos().boxes, strict=True)
    ]
    settings = AccuracySettings(metric=metric)
    assert detected(entries, settings=settings).value == pytest.approx(1.0)
    assert detected(entries[1:], settings=settings).value < 0.9  # an image without any
    entries[2] = {**entries[2], "segmentation": shape([0, 0, 3, 3]), "keypoints": [60, 60, 2] * 2}
    assert detected(entries, settings=settings).value < 0.9
    entries[2]["keypoints"] = [1, 2, 3]
    with pytest.raises(InputError, match="entries have 1 and 2 keypoints"):
        detected(entries, settings=settings)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (results(category_id=2), "the data have no category 2: they have 2, from 0 to 1"),
        (results(image_id=99), "1 of 4 answers are for no sample of the evaluation set: 99"),
        (results(image_id=None), "image_id is neither a whole number nor text"),
        (results(image_id=True), "image_id is neither a whole number nor text"),
        (results(category_id="0"), "category_id is no whole number"),
        (results(bbox=[1, 2, 3]), "bbox is not four numbers"),
        (results(bbox=[1, 2, -3, 4]), "bbox has the width -3"),
        (results(score="0.9"), "score is no number"),
        (results(segmentation=[[1, 2, 3, 4]]), "segmentation is no run-length encoding"),
        (results(keypoints=[1, 2]), "keypoints are not x, y and a score for each"),
        ([{"image_id": 7}], "no category_id"),
        ([3], "found 3"),
        ({"annotations": []}, "found a dict"),
        ('[{"score": NaN}]', "this is no JSON: NaN is no number"),
        ('[{"score": 1e999}]', "no image_id"),
        ("[" * 100_000, "this is no JSON"),
        ("[{", "this is no JSON"),
    ],
)
def test_detections_that_do_not_fit_are_named(detected, entries, message):
    with pytest.raises(InputError, match=re.escape(message)):
        detected(entries)


def test_detections_go_with_a_metric_of_detections(detected):
    with pytest.raises(InputError, match="these are detections, and top1 reads no detections"):
        detected(results(), settings=AccuracySettings())
