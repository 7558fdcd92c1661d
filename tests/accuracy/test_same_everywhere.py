"""Shards, stability, labels and saturation: what must hold wherever an artifact is judged."""

import json
from dataclasses import replace

import numpy as np
import pytest
from plain_network import BAR, Network, Samples
from scipy.special import bdtrc

from optcli import accuracy, environment
from optcli.accuracy import bounds, evaluation, labels, metrics, saturation
from optcli.accuracy.evaluation import EvaluationProgress, EvaluationRequest
from optcli.accuracy.work import EvaluationWork
from optcli.artifact import Artifact, Format
from optcli.data import DataSettings
from optcli.errors import InputError
from optcli.files import sample_cache
from optcli.observer import Silent
from optcli.results.outcomes import Accuracy, Stability
from optcli.settings import TensorSpec
from optcli.settings.accuracy import AccuracySettings


@pytest.mark.parametrize("jobs", [2, 3, 7])
@pytest.mark.parametrize("metric", ["top1", "calibration_error"])
def test_shards_give_what_one_process_gives(evaluate, jobs, metric):
    wrong = [(label + index % 2) % 3 for index, label in enumerate(Samples().labels)]
    settings = AccuracySettings(metric=metric, batch_size=2)
    samples = Samples(labels=wrong)
    alone = evaluate(samples=samples, settings=settings)
    shards = evaluate(samples=samples, settings=settings, jobs=jobs)
    assert shards.value == alone.value
    assert list(shards.ids()) == list(alone.ids())
    assert np.array_equal(shards.rows(shards.outputs[0]), alone.rows(alone.outputs[0]))
    for name in ("correct", "resampled", "predicted", "label"):
        mine, theirs = shards.array(name), alone.array(name)
        assert (mine is None and theirs is None) or np.array_equal(mine, theirs)
    assert accuracy.compare(shards, alone).output_error.max_abs == 0
    assert not list(shards.folder.glob("part-*"))


def test_batches_are_the_same_in_shards(evaluate):
    """A model whose outputs depend on the batch (ranges found at run time) must not notice them."""

    def dynamic(x):
        return {"y": np.round(x / np.abs(x).max(), 1)}

    settings = AccuracySettings(batch_size=4)
    one = evaluate(dynamic, settings=settings)
    three = evaluate(dynamic, settings=settings, jobs=3)
    assert np.array_equal(one.rows(one.outputs[0]), three.rows(three.outputs[0]))


@pytest.mark.parametrize("jobs", [1, 3])
def test_samples_that_somebody_has_prepared_give_the_same(evaluate, tmp_path, monkeypatch, jobs):
    monkeypatch.setattr(sample_cache, "_WORTH_S", 0.0)
    wrong = [(label + index % 2) % 3 for index, label in enumerate(Samples().labels)]
    samples, settings = Samples(labels=wrong), AccuracySettings(batch_size=2)
    plain = evaluate(samples=samples, settings=settings)
    keep = tmp_path / "kept"
    first = evaluate(samples=samples, settings=settings, jobs=jobs, keep=keep)
    assert sample_cache.is_whole(keep)
    nobody = Samples(count=0)  # whoever asked for them would find them empty
    second = evaluate(samples=nobody, settings=settings, jobs=jobs, prepared=keep)
    for found in (first, second):
        assert (found.value, found.samples) == (plain.value, 10)
        assert list(found.ids()) == list(plain.ids())
        assert np.array_equal(found.rows(found.outputs[0]), plain.rows(plain.outputs[0]))
        for name in ("correct", "cluster", "label", "predicted"):
            assert np.array_equal(found.array(name), plain.array(name))


@pytest.mark.parametrize(
    ("shape", "dtype", "size"),
    [
        ((1, 28, 28), "float32", 256),
        ((3, 32, 32), "float32", 256),
        ((3, 64, 64), "float32", 64),
        ((3, 64, 64), "uint8", 256),
        ((3, 224, 224), "float32", 32),
        ((), "int64", 256),
    ],
)
def test_the_batch_size_goes_by_the_size_of_a_sample(shape, dtype, size, tmp_path):
    spec = TensorSpec(name="x", shape=("batch", *shape), dtype=dtype, batch={"min": 1, "max": 512})
    data = DataSettings(source="npz:x.npz")
    model = Artifact("key", Format.ONNX, tmp_path, "fp32", 0, "digest")
    asked = EvaluationRequest(
        inputs=(spec,), feeds=(spec,), data=data, folder=tmp_path,
        artifact=model, runner="onnxruntime", options={}, out=tmp_path,
    )  # fmt: skip
    assert EvaluationWork(asked).size == size
    assert EvaluationWork(replace(asked, settings=AccuracySettings(batch_size=5))).size == 5


def test_constant_outputs_are_noticed_over_shards(evaluate):
    same = lambda x: {"y": np.ones_like(x)}  # noqa: E731
    by_batch = lambda x: {"y": np.ones_like(x) * float(x[0, 0] > 0)}  # noqa: E731
    settings = AccuracySettings(batch_size=1)
    assert evaluate(same, settings=settings, jobs=2).outputs[0].constant
    assert not evaluate(by_batch, settings=settings, jobs=5).outputs[0].constant


def test_what_depends_on_the_batch_is_advice(evaluate):
    def dynamic(x):
        return {"y": x - x.mean(axis=0)}

    found = accuracy.compare(evaluate(dynamic), evaluate())
    assert found.stability.repeat_error == 0
    assert found.stability.batch_error > 0.1
    verdicts = {each.name: each for each in accuracy.verdicts(found, BAR)}
    assert (verdicts["batch invariance"].outcome, verdicts["batch invariance"].blocking) == (
        "inconclusive",
        False,
    )
    assert "batch invariance" not in {
        each.name for each in accuracy.verdicts(accuracy.compare(evaluate(), evaluate()), BAR)
    }


def test_what_depends_on_the_run_is_advice(evaluate):
    def random(x):
        return {"y": x + len(Network.sizes) * 0.01}

    found = accuracy.compare(evaluate(random), evaluate())
    verdict = next(each for each in accuracy.verdicts(found, BAR) if each.name == "determinism")
    assert verdict.outcome == "inconclusive"
    assert verdict.actual == found.stability.repeat_error > 1e-3


def test_int8_may_move_by_a_step_and_fp32_may_not():
    found = Accuracy(
        metric=None,
        value=None,
        baseline=None,
        samples=8,
        stability=Stability(repeat_error=0.0, batch_error=0.01, samples=8),
    )
    for precision, said in (("fp32", True), ("int8", False)):
        verdicts = accuracy.verdicts(found.model_copy(update={"precision": precision}), None)
        assert bool(verdicts) is said


def test_agreement_counts_the_largest_scores(evaluate):
    turned = lambda x: {"y": np.where(np.arange(len(x))[:, None] == 0, -x, x)}  # noqa: E731
    blind = Samples(labels=[None] * 10)
    one = evaluate(samples=blind, settings=None)
    other = evaluate(turned, samples=blind, settings=None)
    assert accuracy.compare(one, one).agreement == 1
    assert accuracy.compare(other, one).agreement == pytest.approx(0.8)  # batches of 8 and 2


class Told(Samples):
    """Samples whose source tells labels without reading them."""

    def __init__(self, wanted):
        super().__init__(labels=wanted)
        self.read = 0

    def __getitem__(self, index):
        self.read += 1
        return super().__getitem__(index)

    def targets(self):
        return iter(zip(self.ids, self.labels, strict=True))


@pytest.mark.parametrize(
    ("last", "message"),
    [(3, "sample-9: label 3 is out of range"), (None, "sample-9: some samples of the evaluation")],
)
def test_labels_are_checked_before_all_samples_are_run(evaluate, last, message):
    samples = Told([0] * 9 + [last])
    with pytest.raises(InputError) as caught:
        evaluate(samples=samples, settings=AccuracySettings(batch_size=2))
    assert message in str(caught.value)
    assert samples.read == 2


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({5: 3}, "sample-5: label 3 is out of range"),
        ({5: None}, "sample-5: some samples of the evaluation set have a label"),
        # A whole batch of them: those before had labels all the same.
        ({4: None, 5: None}, "sample-4: some samples of the evaluation set have a label"),
        ({5: "cat"}, "sample-5: the metric wants class numbers as labels, found 'cat'"),
    ],
)
def test_labels_that_go_wrong_in_the_middle_name_the_sample(evaluate, bad, message):
    """Data that do not tell their labels beforehand, as `python:` ones, are looked at by batches."""
    samples = Samples(labels=[bad.get(index, 0) for index in range(10)])
    assert not hasattr(samples, "targets")
    with pytest.raises(InputError) as caught:
        evaluate(samples=samples, settings=AccuracySettings(batch_size=2))
    assert message in str(caught.value)


def confused(classes, per_class, right, rename=None, seed=0):
    """Records of a network that is `right` for a share of samples, its classes renamed."""
    generator = np.random.default_rng(seed)
    label = np.repeat(np.arange(classes), per_class)
    guess = generator.integers(classes, size=len(label))
    predicted = np.where(generator.random(len(label)) < right, label, guess)
    if rename is not None:
        predicted = rename[predicted]
    return {
        "label": label,
        "predicted": predicted,
        "rank": (predicted != label).astype(int),
        "confidence": np.full(len(label), 0.5),
        "classes": np.full(len(label), classes),
    }


def test_another_order_of_the_classes_is_known_by_its_signature():
    order = np.random.default_rng(1).permutation(10)
    while (order == np.arange(10)).any():
        order = np.roll(order, 1)
    found = labels.other_order(confused(10, 20, 0.8, order))
    assert "if the classes are put into another order" in found
    shifted = labels.other_order(confused(1000, 1, 0.6, (np.arange(1000) + 1) % 1000))
    assert "predictions are the label +1 for 60" in shifted.replace("59", "60").replace("61", "60")
    assert labels.other_order(confused(2, 50, 0.9, np.array([1, 0]))) is not None


def test_names_that_were_sorted_as_text_leave_some_classes_in_their_place():
    """0, 1, 10, 11, 2, ...: two classes of twelve are right, more than guessing gives."""
    order = np.array(sorted(range(12), key=str))
    assert "but for 9" in labels.other_order(confused(12, 30, 0.95, order))
    half_right = np.array([0, 1, 2, 3, 4, 5, 7, 6, 9, 8, 11, 10])
    assert labels.other_order(confused(12, 30, 0.95, half_right)) is None, "it may be a poor network"


def doubts(records, name="top1"):
    metric = metrics.make(AccuracySettings(metric=name), None)
    return labels.doubts(name, metric, records, np.arange(len(records["label"])), None)


def test_guessing_is_a_doubt_and_good_or_middling_networks_are_none():
    for classes, each in ((10, 20), (500, 4), (2, 100)):
        guessing = confused(classes, each, 0.0)
        assert labels.other_order(guessing) is None
        assert "hardly more than guessing" in doubts(guessing)[0]
        assert doubts(confused(classes, each, 0.9)) == []
        assert "top1" in doubts(guessing, "calibration_error")[0]
    assert doubts(confused(10, 30, 0.3)) == []
    # Six of six are more than luck with three classes.
    assert doubts(confused(3, 2, 1.0)) == []
    assert labels.other_order(confused(3, 2, 0.0)) is None
    none_right = {**confused(3, 2, 1.0), "rank": np.full(6, 2)}
    assert doubts(none_right) == ["top1 is 0: look at the weights, at prepare and at the labels"]


@pytest.mark.slow
@pytest.mark.parametrize(("classes", "samples"), [(2, 20), (10, 20), (2, 29), (3, 60), (10, 5)])
def test_guessing_hardly_ever_passes_for_sound(classes, samples):
    """Of few samples as of many: two and ten classes passed in a third of all runs of 20 samples."""
    runs = 2000
    each = [confused(classes, samples // classes + 1, 0.0, seed=seed) for seed in range(runs)]
    rows = [np.random.default_rng(seed).permutation(len(each[0]["label"])) for seed in range(runs)]
    cut = [
        {name: array[order[:samples]] for name, array in records.items()}
        for records, order in zip(each, rows, strict=True)
    ]
    passed = sum(doubts(records) == [] for records in cut)
    assert passed <= 0.006 * runs  # one in 500, and three standard errors of these runs


def test_what_few_samples_can_show():
    assert doubts(confused(10, 1, 1.0)) == [], "10 of 10 with ten classes"
    assert doubts(confused(2, 5, 1.0)) == [], "10 of 10 with two classes"
    assert doubts(confused(2, 3, 1.0)) == [], "6 of 6 with two classes: not one is wrong"
    for each in (1, 2):
        assert "hardly more than guessing" in doubts(confused(2, each, 1.0))[0], "it may be luck"
    wrong = confused(2, 10, 1.0)
    wrong["rank"] = wrong["rank"].copy()
    wrong["rank"][:6] = 1
    assert "hardly more than guessing gives with 2 classes (50.0 %)" in doubts(wrong)[0], "14 of 20"


OWN = """\
class Right:
    {attributes}
    def __call__(self, outputs, target, meta):
        return {value}
"""


@pytest.mark.parametrize(
    ("value", "attributes", "targets", "told"),
    [
        ("bool(outputs['y'][0] > 0.5)", "", [0, 1] * 20, True),
        ("bool(outputs['y'][0] > 0.5)", "", [np.int64(0), np.int64(1)] * 20, True),
        ("bool(outputs['y'][0] > 0.5)", "chance = 0.1", [0, 1] * 20, False),
        ("bool(outputs['y'][0] > 0.5)", "", [0.5, 1.5] * 20, False),
        ("bool(outputs['y'][0] > 0.5)", "", [None, 1] * 20, False),
        ("bool(outputs['y'][0] > 0.5)", "", [1] * 40, False),
        ("float(outputs['y'][0] > 0.5)", "", [0, 1] * 20, False),
        ("float(outputs['y'][0] > 0.5)", "chance = 0.5", [None] * 40, True),
        ("float(outputs['y'][0] > 0.5)", "chance = 0.45; better = 'lower'", [None] * 40, True),
        ("float(outputs['y'][0] > 0.5)", "chance = 0.9; better = 'lower'", [None] * 40, False),
    ],
)
def test_a_metric_of_ones_own_that_guessing_reaches(tmp_path, value, attributes, targets, told):
    """A function that is right for 22 of 40 samples of two classes tells a truth value or a number."""
    text = OWN.replace("{attributes}", attributes).replace("{value}", value)
    (tmp_path / "mine.py").write_text(text)
    metric = metrics.make(AccuracySettings(metric="python:mine.py:Right"), tmp_path)
    right = (np.arange(40) < 22).astype(np.float32)[:, None]
    names = tuple(map(str, range(40)))
    records = metric.records(metrics.Predictions(names, tuple(targets), ({},) * 40, {"y": right}))
    resampled = bounds.resampled(metric, records, np.arange(40))
    found = labels.doubts("mine", metric, records, np.arange(40), resampled)
    assert bool(found) is told
    assert not told or "hardly more than guessing" in found[0]


def test_a_chance_that_is_no_number_is_refused(tmp_path):
    (tmp_path / "mine.py").write_text(OWN.replace("{attributes}", "chance = 'half'"))
    with pytest.raises(InputError, match="the metric's chance is 'half', wanted a number"):
        metrics.make(AccuracySettings(metric="python:mine.py:Right"), tmp_path)


def test_labels_that_are_all_the_same_tell_nothing():
    records = {**confused(10, 50, 1.0), "label": np.zeros(500, int), "rank": np.zeros(500, int)}
    assert "hardly more than guessing gives with 10 classes (100.0 %)" in doubts(records)[0]


def test_five_answers_of_few_classes_are_guesses():
    records = confused(6, 50, 0.9)
    assert doubts(records, "top1") == []
    assert doubts({**records, "rank": np.minimum(records["rank"], 4)}, "top5") == []
    assert doubts(confused(5, 50, 0.9) | {"rank": np.zeros(250, int)}, "top5")


def test_a_collapsed_network_is_no_other_order():
    records = confused(10, 20, 0.0)
    records["predicted"] = np.zeros(200, int)
    records["rank"] = (records["label"] != 0).astype(int)
    assert labels.other_order(records) is None
    assert doubts(records)


def onnx_with_weights(folder, values):
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.from_array(np.array(values, np.int8).reshape(2, 2), "w")
    graph = helper.make_graph(
        [helper.make_node("DequantizeLinear", ["w", "s"], ["y"])],
        "g",
        [],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 2])],
        [weight, numpy_helper.from_array(np.float32(0.1), "s")],
    )
    folder.mkdir()
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, folder / "model.onnx")
    return Artifact("k", Format.ONNX, folder, "int8", 1, "d")


def test_full_range_weights_are_seen_in_the_file(tmp_path):
    full = onnx_with_weights(tmp_path / "full", [127, -3, 1, 0])
    reduced = onnx_with_weights(tmp_path / "reduced", [63, -64, 1, 0])
    assert saturation.full_range(full) is True
    assert saturation.full_range(reduced) is False
    by_its_pass = replace(full, facts={"reduce_range": True})  # but for its depthwise convolutions
    assert saturation.full_range(by_its_pass) is False
    assert saturation.full_range(replace(full, facts={"reduce_range": False})) is True
    floats = Artifact("k", Format.ONNX, tmp_path, "fp32", 1, "d")
    assert saturation.full_range(floats) is None
    told = Artifact("k", Format.EXPORTED, tmp_path, "int8", 1, "d", {"reduce_range": False})
    assert saturation.full_range(told) is True


@pytest.mark.parametrize(
    ("isa", "target", "said"),
    [
        ("avx512_vnni", None, False),
        ("avx512_vnni", "avx2", True),
        ("avx2", None, True),
        ("avx2", "vnni", False),
        ("i8mm", None, False),
    ],
)
def test_a_cpu_without_vnni_is_warned_of(monkeypatch, isa, target, said):
    monkeypatch.setattr(environment, "isa", lambda: isa)
    found = Accuracy(metric=None, value=None, baseline=None, samples=1, full_range_weights=True)
    verdicts = accuracy.verdicts(found, AccuracySettings(target_isa=target))
    assert [each.name for each in verdicts] == (["saturation"] if said else [])
    assert not any(each.blocking for each in verdicts)
    reduced = found.model_copy(update={"full_range_weights": False})
    assert accuracy.verdicts(reduced, AccuracySettings(target_isa=target)) == ()


def test_verdicts_record_runner_and_instructions(evaluate):
    found = accuracy.compare(evaluate(), evaluate())
    assert {(each.runner, each.isa) for each in accuracy.verdicts(found, BAR)} == {
        ("network", environment.isa())
    }


def test_progress_of_all_processes_comes_with_the_time_that_is_left(monkeypatch):
    heard = []

    class Listening(Silent):
        def progress(self, step, fraction, message):
            heard.append((fraction, message))

    clock = iter([0.0, 1.0, 10.0, 200.0])
    monkeypatch.setattr(evaluation.time, "monotonic", lambda: next(clock))
    news = evaluation._EvaluationMonitor("s", Listening())
    news.heard(0, EvaluationProgress(10, 100))
    news.heard(1, EvaluationProgress(10, 100))
    news.heard(0, EvaluationProgress(30, 100))
    assert heard == [
        (0.1, "10 of 100 samples"),
        (0.2, "20 of 100 samples, 2 images/s, 40 s left"),
        (0.4, "40 of 100 samples, 0.2 images/s, 5 min 0 s left"),
    ]


def test_what_is_kept_is_plain_data(evaluate):
    about = json.loads((evaluate().folder / "evaluation.json").read_text())
    assert about["figures"]["top1"] == 1
    assert about["runner"] == "network"


def test_the_bound_of_luck_is_never_below_the_probability():
    generator = np.random.default_rng(0)
    for _ in range(2000):
        count, chance = int(generator.integers(1, 2000)), float(generator.choice([0.5, 0.1, 0.001]))
        right = int(generator.integers(1, count + 1))
        bound = labels._tail_bound(right, count, chance)
        assert bound >= bdtrc(right - 1, count, chance) * (1 - 1e-9)
        assert bound <= 1
    assert labels._tail_bound(480, 500, 0.1) < 1e-100, "a good network is known at once"
