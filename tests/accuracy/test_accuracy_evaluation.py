import numpy as np
import pytest
from plain_network import Network, Samples

from optcli import accuracy
from optcli.accuracy import evaluation, shards
from optcli.accuracy.evaluation import EvaluationProgress
from optcli.errors import InputError, RunnerError
from optcli.observer import Silent
from optcli.settings import TensorSpec
from optcli.settings.accuracy import AccuracySettings


def test_counts_what_is_right_sample_by_sample(evaluate):
    labels = Samples().labels
    labels[3] = (labels[3] + 1) % 3
    found = evaluate(samples=Samples(labels=labels))
    assert (found.metric, found.samples, found.value) == ("top1", 10, 0.9)
    assert list(np.flatnonzero(~found.array("correct"))) == [3]
    assert list(found.ids()) == [f"sample-{index}" for index in range(10)]
    assert found.effective == {"precision": "fp32"}
    assert accuracy.Evaluation.load(found.folder) == found


def test_outputs_are_kept_row_by_row(evaluate):
    found = evaluate(lambda x: {"y": x * 2, "z": x[:, :1]})
    assert [output.name for output in found.outputs] == ["y", "z"]
    assert np.array_equal(found.rows(found.outputs[0]), Samples().x * 2)
    assert found.rows(found.outputs[1]).shape == (10, 1)


@pytest.mark.parametrize(
    ("shape", "asked", "sizes"),
    [
        (("batch", 3), 4, [4, 4, 2]),
        (("batch", 3), 32, [8, 2]),  # the model takes no more than 8
        ((4, 3), 32, [4, 4, 4]),  # the model takes 4, the last two rows are repeats
        ((1, 3), 32, [1] * 10),
    ],
)
def test_batches_are_of_a_size_the_model_takes(evaluate, shape, asked, sizes):
    ranges = {"batch": {"min": 1, "opt": 4, "max": 8}} if "batch" in shape else {}
    spec = TensorSpec(name="x", shape=shape, **ranges)
    found = evaluate(settings=AccuracySettings(batch_size=asked), spec=spec)
    ran, looked = Network.sizes[: len(sizes)], Network.sizes[len(sizes) :]
    assert ran == sizes
    assert all(size in (1, 4, 8) for size in looked)  # whether the batch or the run matters
    assert (found.samples, found.value) == (10, 1.0)
    assert np.array_equal(found.rows(found.outputs[0]), Samples().x)


def test_without_settings_there_is_no_metric(evaluate):
    for samples in (Samples(), Samples(labels=[None] * 10)):
        found = evaluate(samples=samples, settings=None)
        assert (found.metric, found.value, found.samples) == (None, None, 10)


def test_the_metric_reads_the_named_output(evaluate):
    both = lambda x: {"noise": -x, "y": x}  # noqa: E731
    assert evaluate(both).value == 0
    assert evaluate(both, settings=AccuracySettings(output="y")).value == 1
    with pytest.raises(InputError, match="no output 'mask'") as caught:
        evaluate(both, settings=AccuracySettings(output="mask"))
    assert "noise" in caught.value.hint


def test_top5_counts_the_five_best(evaluate):
    scores = np.tile(np.arange(7, dtype=np.float32), (10, 1))
    samples = Samples(labels=[0, 1, 2, 3, 4, 5, 6, 6, 6, 6])
    settings = AccuracySettings(metric="top5", batch_size=8)
    found = evaluate(lambda x: {"y": scores[: len(x)]}, samples=samples, settings=settings)
    assert list(found.array("correct")) == [False] * 2 + [True] * 8
    top1 = evaluate(lambda x: {"y": scores[: len(x)]}, samples=samples)
    assert list(np.flatnonzero(top1.array("correct"))) == [6, 7, 8, 9]


def test_nan_is_never_right_and_is_reported(evaluate):
    def broken(x):
        y = x.copy()
        y[0] = np.nan
        return {"y": y}

    found = evaluate(broken)
    assert not found.finite
    assert list(np.flatnonzero(~found.array("correct"))) == [0, 8]


def test_only_the_first_outputs_are_kept_where_they_are_large(evaluate, monkeypatch):
    monkeypatch.setattr(shards, "BYTES", 7 * 12)
    found = evaluate()
    assert (found.stored, found.samples) == (7, 10)
    assert np.array_equal(found.rows(found.outputs[0]), Samples().x[:7])


def test_outputs_without_a_row_by_sample_are_not_kept(evaluate):
    found = evaluate(lambda x: {"y": x, "boxes": np.ones((37, 4), np.float32)})
    assert [output.file is None for output in found.outputs] == [False, True]
    assert not found.outputs[1].constant


def test_constant_outputs_are_noticed_over_the_whole_set(evaluate):
    def late(x):
        return {"y": np.ones_like(x), "z": np.full((len(x), 1), len(Network.sizes))}

    found = evaluate(late, settings=None)
    assert [output.constant for output in found.outputs] == [True, False]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1, 3] + [0] * 7, "sample-2: label 3 is out of range: the model has 3 classes"),
        ([0, -1] + [0] * 8, "sample-1: label -1 is out of range"),
        (["cat"] * 10, "sample-0: the metric wants class numbers as labels, found 'cat'"),
        ([0, None] + [0] * 8, "sample-1: some samples"),
        ([0] * 9 + [None], "sample-9: some samples"),
        ([None] * 10, "data.evaluation: top1 needs labels, and the evaluation set has none"),
    ],
)
def test_labels_that_do_not_fit_name_the_sample(evaluate, labels, message):
    with pytest.raises(InputError) as caught:
        evaluate(samples=Samples(labels=labels))
    assert message in str(caught.value)


def test_scores_of_another_shape_and_no_output_at_all(evaluate):
    with pytest.raises(InputError, match="batch x classes, found 8 x 3 x 2"):
        evaluate(lambda x: {"y": np.stack([x, x], axis=2)})
    with pytest.raises(RunnerError, match="no output"):
        evaluate(lambda x: {})
    with pytest.raises(InputError, match="empty"):
        evaluate(samples=Samples(count=0))


def test_scores_with_trailing_ones_are_scores(evaluate):
    assert evaluate(lambda x: {"y": x[:, :, None, None]}).value == 1


def test_progress_is_reported(evaluate):
    heard = []

    class Listening(Silent):
        def progress(self, step, fraction, message):
            heard.append((step, fraction, message))

    evaluate(observer=Listening())
    assert heard[0] == ("accuracy", 0.8, "8 of 10 samples")


def test_after_some_seconds_progress_has_a_rate_and_the_time_that_is_left():
    heard, now = [], 0.0

    class Listening(Silent):
        def progress(self, step, fraction, message):
            heard.append((fraction, message))

    news = evaluation._EvaluationMonitor("accuracy", Listening(), clock=lambda: now)
    now = 2.0
    news.heard(0, EvaluationProgress(100, 10000))
    now = 10.0
    news.heard(0, EvaluationProgress(1000, 10000))
    news.heard(1, EvaluationProgress(500, 10000))
    assert heard == [
        (0.01, "100 of 10000 samples"),
        (0.1, "1000 of 10000 samples, 100 images/s, 1 min 30 s left"),
        (0.15, "1500 of 10000 samples, 150 images/s, 57 s left"),
    ]


def test_metric_names_are_checked_with_a_hint():
    assert {"map", "miou", "top1", "zero_shot_top1"} < set(accuracy.metric_names())
    with pytest.raises(Exception, match="unknown metric 'top2'") as caught:
        accuracy.require_metric(AccuracySettings(metric="top2"))
    assert "did you mean 'top" in caught.value.hint
    assert caught.value.exit_code == 2
