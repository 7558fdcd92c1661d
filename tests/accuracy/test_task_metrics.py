"""Metrics of several classes an image, of embeddings, of texts and of depth."""

import json
import re

import numpy as np
import pytest
from plain_network import Samples

from optcli import accuracy
from optcli.accuracy import metrics
from optcli.accuracy.metrics import Predictions
from optcli.errors import InputError, UsageError
from optcli.settings.accuracy import AccuracySettings


def seen(outputs, targets, **more):
    ids = [f"s{index}" for index in range(len(targets))]
    return Predictions(ids, targets, [{} for _ in targets], {"y": outputs}, **more)


def made(name, **options):
    return metrics.make(AccuracySettings(metric=name, options=options), None)


def records(metric, outputs, targets):
    return metric.over_all(metric.records(seen(outputs, targets)))


def value(metric, outputs, targets):
    return metric.value(records(metric, outputs, targets))


# Several classes an image


def several(count=60, classes=5, seed=0):
    generator = np.random.default_rng(seed)
    truth = (generator.random((count, classes)) < 0.3).astype(int)
    truth[:, -1] = 0  # a class that no image has
    logits = (generator.normal(size=truth.shape) + 2 * truth - 1).astype(np.float32)
    return np.round(logits, 1), truth  # rounded: many are equal


@pytest.mark.slow
def test_multilabel_map_is_scikit_learns():
    sklearn = pytest.importorskip("sklearn.metrics", reason="NNCF brings scikit-learn")
    logits, truth = several()
    metric = made("multilabel_map")
    found = records(metric, logits, list(truth))
    wanted = [sklearn.average_precision_score(truth[:, c], logits[:, c]) for c in range(4)]
    assert metric.value(found) == pytest.approx(np.mean(wanted))
    classes = metric.by_class(found)
    assert classes.label.tolist() == [0, 1, 2, 3]
    assert classes.value == pytest.approx(np.array(wanted))
    assert classes.samples.tolist() == truth.sum(axis=0)[:4].tolist()


@pytest.mark.slow
def test_multilabel_f1_is_scikit_learns():
    sklearn = pytest.importorskip("sklearn.metrics", reason="NNCF brings scikit-learn")
    logits, truth = several()
    metric = made("multilabel_f1", threshold=0.4)
    found = records(metric, logits, list(truth))
    named = 1 / (1 + np.exp(-logits)) >= 0.4
    assert metric.value(found) == pytest.approx(sklearn.f1_score(truth, named, average="micro"))
    wanted = sklearn.f1_score(truth[:, :4], named[:, :4], average="macro")
    assert metric.figures(found)["macro_f1"] == pytest.approx(wanted)


@pytest.mark.parametrize("name", ["multilabel_map", "multilabel_f1"])
def test_a_resample_of_several_classes_is_the_set_with_images_repeated(name):
    logits, truth = several(20)
    metric = made(name)
    rows = np.sort(np.random.default_rng(3).integers(20, size=20))
    counts = np.bincount(rows, minlength=20)[None]
    again = value(metric, logits[rows], list(truth[rows]))
    assert metric.resampled(records(metric, logits, list(truth)), counts)[0] == pytest.approx(again)


@pytest.mark.parametrize("name", ["multilabel_map", "multilabel_f1"])
@pytest.mark.parametrize(
    "form",
    [
        lambda row: row.astype(bool),
        lambda row: row.astype(float).tolist(),
        lambda row: np.flatnonzero(row).tolist(),
        lambda row: set(np.flatnonzero(row).tolist()),
        lambda row: np.pad(np.flatnonzero(row), (0, 9 - row.sum()), constant_values=-1),
        lambda row: {"labels": np.repeat(np.flatnonzero(row), 2), "boxes": None},
    ],
)
def test_labels_of_several_classes_have_several_forms(name, form):
    logits, truth = several(12)
    wanted = value(made(name), logits, list(truth))
    assert value(made(name), logits, [form(row) for row in truth]) == wanted


def test_a_label_that_can_be_read_in_two_ways_is_asked_for():
    logits = np.array([[1.0, -1.0], [-1.0, 1.0]], np.float32)
    with pytest.raises(InputError, match="both 0 or 1 for each of 2 classes and a list") as caught:
        value(made("multilabel_map"), logits, [[0, 1], [1, 1]])
    assert caught.value.place == "s0"
    assert "targets: numbers" in caught.value.hint
    assert value(made("multilabel_map", targets="multi_hot"), logits, [[0, 1], [0, 1]]) == 1.0
    with pytest.raises(InputError, match="found the label"):
        value(made("multilabel_map", targets="numbers"), logits, [[1, 1], [0, 1]])


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ([0, 2, 0, 1, 0], "found the label"),
        ([7], "label 7 is out of range: the model has 5 classes"),
        ([0.5, 0, 0, 0, 0], r"found \[0.5, 0, 0, 0, 0\] as a label"),
        (3, "found 3 as a label"),
        ("cat", "found 'cat' as a label"),
    ],
)
def test_labels_of_several_classes_that_are_wrong_name_the_sample(target, message):
    logits, truth = several(3)
    with pytest.raises(InputError, match=message) as caught:
        value(made("multilabel_f1"), logits, [truth[0], target, truth[2]])
    assert caught.value.place == "s1"


def test_what_is_not_known_does_not_count():
    logits, truth = several(30)
    some = truth.copy()
    some[:15, 0] = -1
    wanted = made("multilabel_map").by_class(
        records(made("multilabel_map"), logits[15:], list(truth[15:]))
    )
    found = made("multilabel_map").by_class(records(made("multilabel_map"), logits, list(some)))
    assert found.value[0] == wanted.value[0]
    # No name for it is wrong either.
    named = made("multilabel_f1").figures(records(made("multilabel_f1"), logits + 9, list(some)))
    assert named["precision"] == pytest.approx((some == 1).sum() / (some >= 0).sum())


def test_logits_and_probabilities_have_the_same_f1():
    logits, truth = several()
    soft = 1 / (1 + np.exp(-logits.astype(np.float64)))
    wanted = value(made("multilabel_f1"), logits, list(truth))
    assert value(made("multilabel_f1"), soft, list(truth)) == wanted
    assert value(made("multilabel_f1", activation="none"), soft, list(truth)) == wanted
    # What INT8 rounds beyond 1 makes no logits of probabilities.
    assert value(made("multilabel_f1"), np.where(soft > 0.99, 1.05, soft), list(truth)) == wanted
    with pytest.raises(InputError, match="`activation: none` takes them for probabilities"):
        value(made("multilabel_f1", activation="none"), logits, list(truth))


def test_guessing_several_classes_is_no_better_than_chance():
    _, truth = several(4000)
    noise = np.random.default_rng(1).normal(size=truth.shape)
    metric = made("multilabel_map")
    found = records(metric, noise, list(truth))
    assert metric.value(found) == pytest.approx(metric.chance(found), abs=0.02)
    metric = made("multilabel_f1")
    always = np.tile([9.0, 9.0, 9.0, 9.0, -9.0], (len(truth), 1))
    found = records(metric, always, list(truth))
    assert metric.value(found) == pytest.approx(metric.chance(found))


def test_nobody_is_judged_without_any_class():
    for name in ("multilabel_map", "multilabel_f1"):
        with pytest.raises(InputError, match="finds no class in 2 targets"):
            value(made(name), np.zeros((2, 5)), [[0] * 5] * 2)


# Embeddings


def clusters(count=90, classes=3, size=8, spread=0.8, seed=0):
    generator = np.random.default_rng(seed)
    labels = [index % classes for index in range(count)]
    centres = generator.normal(size=(classes, size))
    rows = centres[labels] + spread * generator.normal(size=(count, size))
    return (7 * rows).astype(np.float32), labels


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 5])
def test_knn_is_scikit_learns(k):
    neighbors = pytest.importorskip("sklearn.neighbors", reason="NNCF brings scikit-learn")
    rows, labels = clusters()
    metric = made("knn", k=k)
    found = records(metric, rows, labels)
    model = neighbors.KNeighborsClassifier(k, metric="cosine", algorithm="brute")
    wanted = []
    for index in range(len(rows)):
        others = np.arange(len(rows)) != index
        model.fit(rows[others], np.array(labels)[others])
        votes = model.predict_proba(rows[index : index + 1])[0]
        if (votes == votes.max()).sum() == 1:  # of as many votes it knows no nearer ones
            wanted.append((index, int(votes.argmax())))
    assert len(wanted) > 70
    assert [found["predicted"][index] for index, _ in wanted] == [label for _, label in wanted]


def test_recall_counts_whoever_has_one_of_the_class_near():
    turns = np.radians([0, 10, 25, 90, 100, 180])
    rows = np.stack([np.cos(turns), np.sin(turns)], axis=1)
    labels = [0, 1, 0, 1, 1, 0]
    # Nearest first: 10 25 90 100 | 0 25 90 | 10 0 90 | 100 25 10 | 90 25 180 10 | 100 90 25.
    metric = made("recall_at_k", k=2)
    found = records(metric, rows, labels)
    assert metric.right(found).tolist() == [True, False, True, True, True, False]
    assert metric.value(found) == pytest.approx(4 / 6)
    assert metric.figures(found) == {"recall_at_1": pytest.approx(2 / 6), "recall_at_5": 1.0}
    assert found["predicted"].tolist() == [1, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("name", ["knn", "recall_at_k"])
def test_a_sample_whose_class_no_other_has_does_not_count(name):
    rows, labels = clusters(31)
    labels[30] = 77
    metric = made(name, k=1)
    found = records(metric, rows, labels)
    assert metric.right(found) is None  # then the bootstrap tells
    counted = metric._right(found)[:30]
    assert metric.value(found) == pytest.approx(counted.mean())
    assert 77 not in metric.by_class(found).label
    counts = np.ones((1, 31))
    assert metric.resampled(found, counts)[0] == metric.value(found)
    with pytest.raises(InputError, match="no two of the 31 samples have the same class"):
        records(metric, rows, list(range(31)))


@pytest.mark.parametrize("name", ["knn", "recall_at_k"])
def test_a_resample_draws_questions_and_keeps_what_is_searched(name):
    """Whoever is drawn twice must not find itself."""
    rows, labels = clusters(30, spread=3.0)
    metric = made(name, k=1)
    found = records(metric, rows, labels)
    twice = np.zeros((1, 30))
    twice[0, ~metric._right(found)] = 2
    assert metric.resampled(found, twice)[0] == 0.0


@pytest.mark.parametrize("name", ["knn", "recall_at_k", "cosine"])
def test_the_length_of_an_embedding_says_nothing(name):
    rows, labels = clusters()
    longer = rows * np.linspace(0.1, 9, len(rows))[:, None]
    assert value(made(name), longer, labels) == value(made(name), rows[:, :, None, None], labels)


@pytest.mark.parametrize("name", ["knn", "recall_at_k"])
def test_who_guesses_embeddings_reaches_the_chance(name):
    generator = np.random.default_rng(0)
    labels = generator.integers(4, size=1500).tolist()
    metric = made(name, k=3)
    found = records(metric, generator.normal(size=(1500, 6)), labels)
    assert metric.value(found) == pytest.approx(metric.chance(found), abs=0.04)


def test_embeddings_that_do_not_fit_are_refused():
    rows, labels = clusters(6)
    with pytest.raises(InputError, match="wants embeddings of shape batch x size, found 6 x 8 x 2"):
        value(made("knn", k=1), np.repeat(rows[:, :, None], 2, axis=2), labels)
    with pytest.raises(InputError, match="found 6 samples, and each is compared with its 6 nearest"):
        value(made("knn", k=6), rows, labels)
    with pytest.raises(InputError, match="wants class numbers as labels, found 'a'"):
        value(made("recall_at_k"), rows, ["a"] * 6)


def test_an_embedding_that_is_no_number_is_never_right():
    rows, labels = clusters(30)
    rows[4] = np.nan
    for name in ("knn", "recall_at_k"):
        metric = made(name, k=1)
        found = records(metric, rows, labels)
        assert not metric.right(found)[4]
        assert found["predicted"][4] == -1
    assert np.isnan(value(made("cosine"), rows, labels))


def embed(x):
    """A network whose output is an embedding of the image."""
    flat = x.reshape(len(x), -1).astype(np.float32)
    return {"y": np.concatenate([flat, 1 - flat], axis=1)}


def test_the_cosine_is_paired_with_the_baseline(evaluate):
    settings = AccuracySettings(metric="cosine", max_drop=0.02)
    base = evaluate(embed, settings=settings)
    shift = np.linspace(0, 0.4, 10)

    def noisy(x):
        rows = embed(x)["y"]
        rows[:, 0] += shift[: len(rows)]
        return {"y": rows}

    other = evaluate(noisy, settings=settings)
    found = accuracy.compare(other, base)
    mine, theirs = other.array("embedding"), base.array("embedding")
    each = (mine.astype(float) * theirs).sum(axis=1)
    assert found.value == pytest.approx(each.mean(), abs=1e-6)
    assert found.value < 1
    assert found.baseline == pytest.approx(1.0, abs=1e-6)
    assert found.drop.value == pytest.approx(found.baseline - found.value)
    assert found.drop.low < found.drop.value < found.drop.high
    assert found.regressed is None
    assert found.agreement is None  # the largest number of an embedding is no class
    itself = accuracy.compare(base, base)
    assert (itself.value, itself.drop.value) == (pytest.approx(1.0), 0.0)
    outcomes = {v.name: v.outcome for v in accuracy.verdicts(found, settings)}
    assert outcomes["accuracy"] == ("accept" if found.drop.value <= 0.02 else "reject")


def test_the_cosine_needs_no_labels_and_the_same_size(evaluate):
    settings = AccuracySettings(metric="cosine")
    samples = Samples(labels=[None] * 10)
    base = evaluate(embed, settings=settings, samples=samples)
    wider = evaluate(lambda x: {"y": np.tile(embed(x)["y"], 2)}, settings=settings, samples=samples)
    found = accuracy.compare(wider, base)
    assert found.metric is None
    outcomes = {v.name: v.outcome for v in accuracy.verdicts(found, settings)}
    assert outcomes == {"outputs": "reject", "accuracy": "inconclusive"}


# Texts


def zero_shot(folder, file, names=None, **options):
    settings = AccuracySettings(metric="zero_shot_top1", text=file, options=options)
    return metrics.make(settings, folder, lambda: names)


def test_zero_shot_takes_the_nearest_text(tmp_path):
    rows, labels = clusters(60)
    texts = np.stack([rows[np.array(labels) == c].mean(axis=0) for c in range(3)])
    np.save(tmp_path / "texts.npy", 5 * texts)
    metric = zero_shot(tmp_path, "texts.npy")
    found = records(metric, rows, labels)
    scores = (rows @ texts.T) / np.linalg.norm(texts, axis=1)
    assert (found["predicted"] == scores.argmax(axis=1)).all()
    assert metric.value(found) == (scores.argmax(axis=1) == labels).mean() > 0.6
    # The scale is that of the confidence alone.
    flat = records(zero_shot(tmp_path, "texts.npy", scale=1e-9), rows, labels)
    assert flat["confidence"] == pytest.approx(np.full(60, 1 / 3))
    assert (flat["predicted"] == found["predicted"]).all()


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_texts_are_paired_with_the_data_by_name(tmp_path, suffix):
    rows, labels = clusters(30)
    texts = np.stack([rows[np.array(labels) == c].mean(axis=0) for c in range(3)])
    names = ["cat", "dog", "eel", "fox"]
    shuffled = [2, 0, 3, 1]
    stored = np.concatenate([texts, [rows.mean(axis=0)]])[shuffled].astype(np.float32)
    file = tmp_path / f"texts.{suffix}"
    if suffix == "npz":
        np.savez(file, embeddings=stored, names=np.array(names)[shuffled])
    else:
        from safetensors.numpy import save_file

        said = json.dumps([names[number] for number in shuffled])
        save_file({"embeddings": stored}, file, {"classes": said})
    found = records(zero_shot(tmp_path, file.name, names[:3]), rows, labels)
    np.save(tmp_path / "plain.npy", texts)
    plain = records(zero_shot(tmp_path, "plain.npy"), rows, labels)
    assert (
        found["predicted"][found["predicted"] < 3] == plain["predicted"][found["predicted"] < 3]
    ).all()
    assert found["classes"][0] == 4
    with pytest.raises(InputError, match="1 of the data's 2 classes have no text: gnu"):
        zero_shot(tmp_path, file.name, ["cat", "gnu"])


def test_several_texts_of_a_class_are_averaged(tmp_path):
    rows, labels = clusters(30)
    texts = np.random.default_rng(0).normal(size=(3, 4, 8))
    np.save(tmp_path / "several.npy", texts)
    unit = texts / np.linalg.norm(texts, axis=-1, keepdims=True)
    np.save(tmp_path / "one.npy", unit.mean(axis=1))
    found, wanted = (
        records(zero_shot(tmp_path, name), rows, labels) for name in ("several.npy", "one.npy")
    )
    assert (found["predicted"] == wanted["predicted"]).all()


def hostile(tmp_path):
    np.savez(tmp_path / "pickled.npz", embeddings=np.array([{}, {}], object))
    np.savez(tmp_path / "two.npz", a=np.ones((2, 3)), b=np.ones((2, 3)))
    np.savez(tmp_path / "short.npz", embeddings=np.ones((2, 3)), names=np.array(["a"]))
    np.savez(tmp_path / "twice.npz", embeddings=np.ones((2, 3)), names=np.array(["a", "a"]))
    np.save(tmp_path / "nan.npy", np.full((2, 3), np.nan))
    np.save(tmp_path / "zero.npy", np.zeros((2, 3)))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "two.npz").read_bytes()[:90])
    (tmp_path / "cut.npy").write_bytes(b"\x93NUMPY\x01")
    (tmp_path / "cut.safetensors").write_bytes(b"\xff" * 20)
    (tmp_path / "texts.pt").write_bytes(b"PK")
    (tmp_path / "folder.npz").mkdir()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pickled.npz", "is pickled"),
        ("two.npz", "found a float64"),
        ("short.npz", "found 1 names for 2 embeddings"),
        ("twice.npz", "two embeddings have the name 'a'"),
        ("nan.npy", "holds NaN"),
        ("zero.npy", "rows of zeros"),
        ("cut.npz", "not an npz file"),
        ("cut.npy", "not an array of NumPy"),
        ("cut.safetensors", "not readable"),
        ("texts.pt", "found the suffix '.pt'"),
        ("folder.npz", "cannot be read: found a folder"),
        ("none.npz", "No such file"),
    ],
)
def test_texts_that_cannot_be_read_are_named(tmp_path, name, message):
    hostile(tmp_path)
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        zero_shot(tmp_path, name)
    assert str(tmp_path / name) in caught.value.place


def test_texts_of_another_model_are_refused(tmp_path):
    rows, labels = clusters(6)
    np.save(tmp_path / "texts.npy", np.ones((3, 5)))
    with pytest.raises(InputError, match="an image's embedding has 8 values, a text's 5"):
        records(zero_shot(tmp_path, "texts.npy"), rows, labels)


def test_a_text_goes_with_zero_shot_alone():
    for said in ({"metric": "top1", "text": "x.npy"}, {"metric": "zero_shot_top1"}):
        with pytest.raises(ValueError, match="wanted it with zero_shot_top1 alone"):
            AccuracySettings.model_validate(said)


# Depth


def depth(count=4, size=(6, 5), seed=0):
    generator = np.random.default_rng(seed)
    truth = 1 + 9 * generator.random((count, *size))
    return truth * np.exp(0.2 * generator.normal(size=truth.shape)), truth


@pytest.mark.parametrize("channel", [False, True])
def test_depth_is_its_formula(channel):
    found, truth = depth()
    ratio = np.maximum(found / truth, truth / found)
    outputs = found[:, None] if channel else found
    error = (np.abs(found - truth) / truth).mean()
    assert value(made("abs_rel"), outputs, list(truth)) == pytest.approx(error)
    assert value(made("delta1"), outputs, list(truth)) == pytest.approx((ratio < 1.25).mean())
    figures = made("delta1").figures(records(made("delta1"), outputs, list(truth)))
    assert figures["abs_rel"] == pytest.approx(error)
    assert made("abs_rel").better() == "lower"


def test_pixels_without_a_depth_do_not_count():
    found, truth = depth()
    wanted = value(made("abs_rel"), found[:, :3], list(truth[:, :3]))
    truth[:, 3], truth[:, 4], truth[:, 5] = 0, np.nan, np.inf
    assert value(made("abs_rel"), found, list(truth)) == pytest.approx(wanted)
    # An image without any counts in no resample either.
    truth[2] = 0
    metric = made("delta1")
    kept = [0, 1, 3]
    whole = records(metric, found, list(truth))
    assert metric.value(whole) == pytest.approx(value(metric, found[kept], list(truth[kept])))
    assert metric.resampled(whole, np.array([[1, 0, 5, 0]]))[0] == pytest.approx(whole["delta1"][0])
    with pytest.raises(InputError, match="delta1 has no pixel to count in 4 targets"):
        value(metric, found, list(np.zeros_like(truth)))


def test_an_alignment_takes_scale_and_shift_away():
    found, truth = depth()
    for how, changed in (("median", 3 * found), ("scale_and_shift", 3 * found + 2)):
        metric = made("abs_rel", align=how)
        assert value(metric, changed, list(truth)) == pytest.approx(value(metric, found, list(truth)))
        assert value(metric, 3 * truth, list(truth)) == pytest.approx(0, abs=1e-9)
    inverse = made("delta1", align="scale_and_shift", predicts="inverse_depth")
    assert value(inverse, 4 / truth + 1, list(truth)) == 1.0
    assert value(made("delta1", predicts="inverse_depth"), 1 / truth, list(truth)) == 1.0
    # A constant says nothing, whatever aligns it.
    flat = made("delta1", align="median")
    assert value(flat, np.ones_like(truth), list(truth)) == flat.chance(
        records(flat, found, list(truth))
    )


def test_depth_is_read_in_its_unit_and_range():
    found, truth = depth()
    stored = np.round(1000 * truth).astype(np.uint16)
    metric = made("abs_rel", target_scale=0.001)
    assert value(metric, found, list(stored)) == pytest.approx(
        value(made("abs_rel"), found, list(truth)), abs=1e-3
    )
    near = made("abs_rel", max_depth=5)
    wanted = np.where(truth <= 5, np.abs(np.minimum(found, 5) - truth) / truth, np.nan)
    assert value(near, found, list(truth)) == pytest.approx(np.nanmean(wanted, axis=(1, 2)).mean())


def test_depth_that_does_not_fit_is_refused():
    found, truth = depth()
    with pytest.raises(InputError, match="the output is 6 x 4, the target 6 x 5") as caught:
        value(made("abs_rel"), found[:, :, :4], list(truth))
    assert "resize: true" in caught.value.hint
    with pytest.raises(
        InputError, match=r"wants a depth for every pixel .height, width., found int64 \[\]"
    ):
        value(made("delta1"), found, [3, 3, 3, 3])


@pytest.mark.slow
def test_depth_is_brought_to_the_targets_size():
    found, truth = depth(size=(8, 8))
    small = found.reshape(4, 4, 2, 4, 2).mean(axis=(2, 4))
    assert value(made("delta1", resize=True), small[:, None], list(truth)) > 0


def test_what_depth_could_lose_is_bounded_by_the_worst_image_seen():
    found, truth = depth()
    assert made("abs_rel").largest_change(records(made("abs_rel"), found, list(truth))) == 1.0
    worst = made("abs_rel").largest_change(records(made("abs_rel"), 9 * found, list(truth)))
    assert worst > 7


@pytest.mark.parametrize("name", metrics.metric_names())
def test_options_that_a_metric_does_not_have_name_its_own(name):
    text = {"text": "x.npy"} if name == "zero_shot_top1" else {}
    settings = AccuracySettings(metric=name, options={"nonsense": 1}, **text)
    with pytest.raises(UsageError, match="option 'nonsense'"):
        metrics.require_metric(settings)
