"""Metrics against torchmetrics, and metrics of the user's own."""

import numpy as np
import pytest
from plain_network import Samples

from optcli import accuracy
from optcli.accuracy import bounds, metrics
from optcli.accuracy import labels as guesses
from optcli.accuracy.metrics import Predictions
from optcli.errors import InputError, UsageError
from optcli.settings.accuracy import AccuracySettings
from optcli.settings.postprocess import PostprocessSettings


def seen(outputs, targets, **more):
    ids = [f"s{index}" for index in range(len(targets))]
    return Predictions(ids, targets, [{} for _ in targets], {"y": outputs}, **more)


def made(name, **options):
    return metrics.make(AccuracySettings(metric=name, options=options), None)


def scores(count=200, classes=7, seed=0):
    generator = np.random.default_rng(seed)
    values = generator.normal(size=(count, classes)).astype(np.float32) * 2
    return values, [int(n) for n in generator.integers(classes, size=count)]


@pytest.mark.slow
@pytest.mark.parametrize("probabilities", [False, True])
def test_classification_is_torchmetrics(probabilities):
    import torch
    from torchmetrics.functional.classification import (
        multiclass_accuracy,
        multiclass_calibration_error,
    )

    values, labels = scores()
    tensor, truth = torch.tensor(values), torch.tensor(labels)
    soft = tensor.softmax(1)
    given = soft.numpy() if probabilities else values
    records = made("top1").records(seen(given, labels))
    options = {"num_classes": 7, "average": "micro"}
    for name, count in (("top1", 1), ("top5", 5)):
        wanted = multiclass_accuracy(tensor, truth, top_k=count, **options)
        assert made(name).value(records) == pytest.approx(float(wanted))
    wanted = multiclass_calibration_error(soft, truth, num_classes=7, n_bins=15)
    assert made("calibration_error").value(records) == pytest.approx(float(wanted), abs=1e-6)
    figures = made("top1").figures(records)
    assert set(figures) == {"top1", "top5", "calibration_error"}


def maps(count=6, classes=5, size=(9, 7), seed=0):
    generator = np.random.default_rng(seed)
    outputs = generator.normal(size=(count, classes, *size)).astype(np.float32)
    targets = [generator.integers(classes - 1, size=size) for _ in range(count)]  # one is never there
    for index, target in enumerate(targets):
        outputs[index] += 1.5 * (np.arange(classes)[:, None, None] == target)
        target[0, :3] = 255
    return outputs, targets


@pytest.mark.slow
def test_miou_is_torchmetrics():
    import torch
    from torchmetrics.functional.classification import multiclass_jaccard_index

    outputs, targets = maps()
    metric = made("miou")
    records = metric.records(seen(outputs, targets))
    truth = torch.tensor(np.stack(targets))
    options = {"num_classes": 5, "average": "macro", "ignore_index": 255}
    wanted = multiclass_jaccard_index(torch.tensor(outputs).argmax(1), truth, **options)
    assert metric.value(records) == pytest.approx(float(wanted), abs=1e-6)
    # A resample is the set with its images repeated.
    counts = np.array([[2, 0, 1, 0, 3, 0]])
    rows = np.repeat(np.arange(6), counts[0])
    again = metric.records(seen(outputs[rows], [targets[row] for row in rows]))
    assert metric.resampled(records, counts)[0] == pytest.approx(metric.value(again))


@pytest.mark.slow
def test_miou_takes_class_numbers_and_other_sizes_if_told():
    outputs, targets = maps()
    value = made("miou").value(made("miou").records(seen(outputs, targets)))
    labels = outputs.argmax(1)
    metric = made("miou", classes=5)
    assert metric.value(metric.records(seen(labels, targets))) == value
    with pytest.raises(InputError, match="batch x classes x height x width, found 6 x 9 x 7"):
        made("miou").records(seen(labels, targets))
    with pytest.raises(InputError, match="the output is 5 x 7, the target 9 x 7"):
        made("miou").records(seen(outputs[:, :, :5], targets))
    grown = made("miou", resize=True)
    assert 0 < grown.value(grown.records(seen(outputs[:, :, :5], targets))) < value


def test_labels_of_pixels_that_are_out_of_range_name_the_sample():
    outputs, targets = maps()
    targets[4][2, 2] = 5
    with pytest.raises(InputError, match="label 5 is out of range: the model has 5 classes") as caught:
        made("miou").records(seen(outputs, targets))
    assert caught.value.place == "s4"
    with pytest.raises(InputError, match=r"wants class numbers .height, width., found float64"):
        made("miou").records(seen(outputs[:1], [targets[0] + 0.5]))


@pytest.mark.parametrize("name", ["top1", "calibration_error"])
def test_a_resample_is_the_set_with_samples_repeated(name):
    values, labels = scores(30)
    metric = made(name)
    records = metric.records(seen(values, labels))
    rows = np.sort(np.random.default_rng(1).integers(30, size=30))
    counts = np.bincount(rows, minlength=30)[None]
    again = metric.records(seen(values[rows], [labels[row] for row in rows]))
    assert metric.resampled(records, counts)[0] == pytest.approx(metric.value(again))


def test_two_evaluations_of_one_set_draw_the_same_resamples(monkeypatch):
    values, labels = scores(40)
    metric = made("calibration_error")
    records = metric.records(seen(values, labels))
    whole = bounds.resampled(metric, records, np.arange(40))
    assert whole.shape == (5000,)
    assert np.array_equal(whole, bounds.resampled(metric, records, np.arange(40)))
    spread = whole.std()
    assert 0.2 / np.sqrt(40) < spread < 1 / np.sqrt(40)


def test_unknown_metrics_and_options_are_said_before_anything_runs():
    with pytest.raises(UsageError, match="unknown metric 'miuo'") as caught:
        accuracy.require_metric(AccuracySettings(metric="miuo"))
    assert "did you mean 'miou'?" in caught.value.hint
    with pytest.raises(UsageError, match="miou: option 'ignore_idx'") as caught:
        accuracy.require_metric(AccuracySettings(metric="miou", options={"ignore_idx": 0}))
    assert "ignore_index" in caught.value.hint


CODE = '''
import numpy as np


def close(outputs, target, meta, within=0.5):
    return bool(abs(outputs["y"].max() - target) < within)


def error(outputs, target, meta):
    return float(abs(outputs["y"].max() - target))


error.better = "lower"
error.range = (0, 10)


class Spread:
    """A total that is no mean."""

    def __init__(self, power=1):
        self.power = power

    def __call__(self, outputs, target, meta):
        return [outputs["y"].max(), 1.0]

    def total(self, rows):
        return float(rows[:, 0].std() ** self.power)


def broken(outputs, target, meta):
    return outputs["z"]


def shape(outputs, target, meta):
    return outputs["y"]


def reversed_scores(outputs, meta):
    return -outputs["y"]


def second(outputs, target, meta):
    return float(outputs[1])
'''


@pytest.fixture
def users(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(CODE)
    return lambda name: f"python:own.py:{name}"


@pytest.mark.slow
def test_a_metric_of_ones_own_is_a_mean_of_what_it_says(evaluate, users):
    samples = Samples(labels=[0.9] * 10)
    largest = samples.x.max(axis=1)
    found = evaluate(samples=samples, settings=AccuracySettings(metric=users("error")))
    assert found.value == pytest.approx(np.abs(largest - 0.9).mean(), rel=1e-6)
    assert found.better == "lower"
    assert found.array("correct") is None
    assert found.array("resampled").shape == (5000,)
    worse = evaluate(
        lambda x: {"y": x + 1}, samples=samples, settings=AccuracySettings(metric=users("error"))
    )
    drop = accuracy.compare(worse, found).drop
    assert drop.value == pytest.approx(worse.value - found.value)
    assert drop.low < drop.value < drop.high


def test_truth_values_are_counted_like_top1(evaluate, users):
    samples = Samples(labels=[0.9] * 10)
    settings = AccuracySettings(metric=users("close"), options={"within": 0.3})
    found = evaluate(samples=samples, settings=settings)
    wanted = np.abs(samples.x.max(axis=1) - 0.9) < 0.3
    assert np.array_equal(found.array("correct"), wanted)
    assert accuracy.compare(found, found).regressed == 0


@pytest.mark.slow
def test_a_class_with_a_total_sums_up_itself(evaluate, users):
    settings = AccuracySettings(metric=users("Spread"), options={"power": 2})
    found = evaluate(samples=Samples(count=6, labels=[None] * 6), settings=settings)
    assert found.value == pytest.approx(Samples(6).x.max(axis=1).astype(float).var())
    assert len(found.array("resampled")) == 5000


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("broken", "the metric, in sample sample-0, raises KeyError: 'z'"),
        ("shape", r"the metric gives float32 \[3\] for sample sample-0"),
        ("missing", "defines no 'missing'"),
    ],
)
def test_what_is_wrong_with_it_names_file_and_sample(evaluate, users, name, message):
    with pytest.raises(InputError, match=message) as caught:
        evaluate(settings=AccuracySettings(metric=users(name)))
    assert "own.py" in str(caught.value)


def test_postprocess_of_ones_own_is_what_metrics_read(evaluate, users):
    decode = PostprocessSettings.model_validate(users("reversed_scores"))
    assert evaluate().value == 1
    assert evaluate(postprocess=decode).value == 0
    found = evaluate(settings=AccuracySettings(metric=users("second")), postprocess=decode)
    assert found.value == pytest.approx(-Samples().x[:, 1].astype(float).mean(), rel=1e-6)


def independent_miou(outputs, targets, ignored):
    """Pixel by pixel with sets, and no arithmetic of ours."""
    classes = outputs.shape[1]
    predicted = np.concatenate([each.argmax(axis=0).ravel() for each in outputs])
    truth = np.concatenate([each.ravel() for each in targets])
    predicted, truth = predicted[truth != ignored], truth[truth != ignored]
    found = {}
    for label in range(classes):
        mine, theirs = predicted == label, truth == label
        if label != ignored and (mine | theirs).any():
            found[label] = (mine & theirs).sum() / (mine | theirs).sum()
    return found


@pytest.mark.parametrize("predicts_ignored", [True, False])
@pytest.mark.parametrize("ignored", [0, 3, 4, 255])
def test_the_ignored_class_is_no_class_of_the_mean(ignored, predicts_ignored):
    """As CamVid has it: void is class 11 of 12, and networks predict it here and there."""
    outputs, targets = maps(count=8, seed=ignored)
    for target in targets:
        target[:, :2] = ignored
    if not predicts_ignored and ignored < 5:
        outputs[:, ignored] = -100
    metric = made("miou", ignore_index=ignored)
    records = metric.records(seen(outputs, targets)) if ignored == 255 else None
    if records is None:  # 255 in these targets is no class of theirs
        targets = [np.where(target == 255, 1, target) for target in targets]
        records = metric.records(seen(outputs, targets))
    wanted = independent_miou(outputs, targets, ignored)
    assert metric.value(records) == pytest.approx(np.mean([*wanted.values()]))
    ones = np.ones((1, len(targets)))
    assert metric.resampled(records, ones)[0] == pytest.approx(metric.value(records))
    by_class = metric.by_class(records)
    assert dict(zip(by_class.label.tolist(), by_class.value, strict=True)) == pytest.approx(wanted)


@pytest.mark.slow
@pytest.mark.parametrize("ignored", [0, 4])
def test_the_ignored_class_is_left_out_as_torchmetrics_does(ignored):
    import torch
    from torchmetrics.functional.classification import multiclass_jaccard_index

    outputs, targets = maps(count=8, seed=1)
    targets = [np.where(target == 255, ignored, target) for target in targets]
    metric = made("miou", ignore_index=ignored)
    records = metric.records(seen(outputs, targets))
    truth = torch.tensor(np.stack(targets))
    options = {"num_classes": 5, "ignore_index": ignored}
    wanted = multiclass_jaccard_index(torch.tensor(outputs).argmax(1), truth, **options)
    assert metric.value(records) == pytest.approx(float(wanted), abs=1e-6)
    each = multiclass_jaccard_index(
        torch.tensor(outputs).argmax(1), truth, average="none", **options
    ).numpy()
    by_class = metric.by_class(records)
    assert np.allclose(by_class.value, each[by_class.label], atol=1e-6)
    assert ignored not in by_class.label


def test_miou_without_a_pixel_to_count_is_an_error():
    outputs, targets = maps()
    metric = made("miou")
    records = metric.records(seen(outputs, [np.full_like(target, 255) for target in targets]))
    with pytest.raises(InputError, match="no pixel to count in 6 targets: all are 255"):
        metric.value(records)


def test_segmentation_that_looks_at_nothing_is_guessing():
    _, targets = maps(count=40)
    metric = made("miou")
    constant = np.zeros((40, 5, 9, 7), np.float32)
    constant[:, 1] = 1
    largest = np.bincount(np.concatenate([t[t != 255] for t in targets])).argmax()
    constant[:, largest] = 2
    records = metric.records(seen(constant, targets))
    value = metric.value(records)
    assert value <= metric.chance(records)
    resampled = bounds.resampled(metric, records, np.arange(40))
    assert (
        "hardly more than guessing"
        in guesses.doubts("miou", metric, records, np.arange(40), resampled)[0]
    )
    good, truths = maps(count=40)
    records = metric.records(seen(good, truths))
    resampled = bounds.resampled(metric, records, np.arange(40))
    assert guesses.doubts("miou", metric, records, np.arange(40), resampled) == []


def test_a_metric_that_is_no_number_is_an_error_that_names_the_sample(evaluate, tmp_path):
    (tmp_path / "own.py").write_text(
        "def odd(outputs, target, meta):\n"
        "    return float('nan') if outputs['y'][0] > 0.5 else 0.5\n"
        "def whole(outputs, target, meta):\n"
        "    return [1.0]\n"
        "class Total:\n"
        "    def __call__(self, outputs, target, meta):\n"
        "        return [1.0]\n"
        "    def total(self, rows):\n"
        "        return float('inf')\n"
    )
    first = int(np.flatnonzero(Samples().x[:, 0] > 0.5)[0])
    count = int((Samples().x[:, 0] > 0.5).sum())
    with pytest.raises(InputError) as caught:
        evaluate(settings=AccuracySettings(metric="python:own.py:odd"))
    assert f"the metric is nan over 10 samples, {count} of them no numbers" in str(caught.value)
    assert f"the first sample-{first}" in str(caught.value)
    assert caught.value.place == "accuracy.metric python:own.py:odd"
    with pytest.raises(InputError, match="the metric is inf over 10 samples"):
        evaluate(settings=AccuracySettings(metric="python:own.py:Total"))


def test_a_metric_is_no_number_where_the_outputs_are_none_and_these_are_rejected(evaluate, tmp_path):
    (tmp_path / "own.py").write_text(
        "def mean(outputs, target, meta):\n    return float(outputs['y'].mean())\n"
    )
    settings = AccuracySettings(metric="python:own.py:mean")
    broken = evaluate(lambda x: {"y": x * np.nan}, settings=settings)
    found = accuracy.compare(broken, evaluate(settings=settings))
    assert (found.metric, found.drop) == (None, None)
    verdicts = {each.name: each for each in accuracy.verdicts(found, settings)}
    assert verdicts["outputs"].outcome == "reject"
    assert not any(each.outcome == "accept" for each in verdicts.values())


def test_a_metric_that_is_zero_is_nothing_to_compare_with(evaluate, tmp_path):
    (tmp_path / "own.py").write_text("def none(outputs, target, meta):\n    return 0.0\n")
    settings = AccuracySettings(metric="python:own.py:none")
    made = evaluate(settings=settings)
    found = {v.name: v for v in accuracy.verdicts(accuracy.compare(made, made), settings)}
    assert (found["accuracy"].outcome, found["accuracy"].blocking) == ("inconclusive", True)
    assert "python:own.py:none is 0" in found["accuracy"].reason
    (tmp_path / "own.py").write_text(
        "def none(outputs, target, meta):\n    return 0.0\nnone.better = 'lower'\n"
    )
    assert evaluate(settings=settings).doubts == (), "no error at all is the best there is"


def test_each_class_is_in_the_comparison(evaluate):
    samples = Samples(60)
    worse = lambda x: {"y": np.where(x.argmax(1, keepdims=True) == 2, -x, x)}  # noqa: E731
    found = accuracy.compare(evaluate(worse, samples=samples), evaluate(samples=samples))
    label = np.array(samples.labels)
    assert [each.label for each in found.per_class] == [0, 1, 2]
    assert [each.samples for each in found.per_class] == np.bincount(label).tolist()
    assert [each.value for each in found.per_class] == [1, 1, 0]
    assert [each.baseline for each in found.per_class] == [1, 1, 1]


@pytest.mark.parametrize("name", ["range = (1, 1)", "range = 3", "range = (0, float('inf'))"])
def test_a_range_that_is_none_is_said(evaluate, tmp_path, name):
    (tmp_path / "own.py").write_text(f"def loss(outputs, target, meta):\n    return 1.0\nloss.{name}\n")
    with pytest.raises(InputError, match=r"wanted \(low, high\)"):
        evaluate(settings=AccuracySettings(metric="python:own.py:loss"))
