import math

import numpy as np
import pytest
from plain_network import BAR, Samples

from optcli import accuracy
from optcli.accuracy import bounds, differences
from optcli.errors import InputError
from optcli.results.statistics import drop_interval
from optcli.settings.accuracy import AccuracySettings


def test_an_identical_copy_loses_nothing(evaluate):
    found = accuracy.compare(evaluate(), evaluate())
    assert (found.value, found.baseline, found.drop.value) == (1, 1, 0)
    assert (found.regressed, found.improved) == (0, 0)
    assert found.drop.low < 0 < found.drop.high
    error = found.output_error
    assert (error.sqnr_db, error.max_abs, error.mean_abs, error.samples) == (None, 0, 0, 10)
    assert error.cosine == pytest.approx(1)
    assert (error.finite, error.constant) == (True, False)


def test_discordant_samples_are_counted_both_ways(evaluate):
    labels = Samples().labels
    wrong_in_base = [(label + 1) % 3 if index == 0 else label for index, label in enumerate(labels)]

    def swapped(x):  # wrong everywhere but where the label was made wrong
        return {"y": np.roll(x, 1, axis=1)}

    samples = Samples(labels=wrong_in_base)
    found = accuracy.compare(evaluate(swapped, samples=samples), evaluate(samples=samples))
    assert (found.regressed, found.improved, found.samples) == (9, 1, 10)
    assert found.drop.value == pytest.approx(0.8)
    assert (found.drop.low, found.drop.high) == bounds.counted(9, 1, 10, 0.025)
    low, high = drop_interval(9, 1, 10)
    assert found.drop.low <= low < high <= found.drop.high
    assert (found.value, found.baseline) == (0.1, 0.9)


def test_output_error_over_all_outputs(evaluate, monkeypatch):
    base = evaluate(lambda x: {"y": x, "z": x * 10})
    mine = evaluate(lambda x: {"a": x + 0.5, "b": x * 10})
    for chunk in (16 * 2**20, 48):  # the same, whatever the pieces
        monkeypatch.setattr(differences, "_CHUNK_BYTES", chunk)
        error = accuracy.compare(mine, base).output_error
        x = Samples().x.astype(np.float64)
        theirs, ours = np.concatenate([x, x * 10]), np.concatenate([x + 0.5, x * 10])
        signal = 10 * math.log10((theirs**2).sum() / (30 * 0.25))
        assert error.sqnr_db == pytest.approx(signal, rel=1e-5)
        cosine = (theirs * ours).sum() / np.linalg.norm(theirs) / np.linalg.norm(ours)
        assert error.cosine == pytest.approx(cosine)
        assert (error.max_abs, error.mean_abs) == (pytest.approx(0.5), pytest.approx(0.25))


def test_other_samples_cannot_be_compared(evaluate):
    ids = [f"other-{index}" for index in range(10)]
    with pytest.raises(InputError, match="different samples"):
        accuracy.compare(evaluate(samples=Samples(ids=ids)), evaluate())


def test_other_shapes_and_nan_leave_the_error_open(evaluate):
    base = evaluate(settings=None)
    other = accuracy.compare(evaluate(lambda x: {"y": x[:, :2]}, settings=None), base)
    assert (other.metric, other.value, other.drop) == (None, None, None)
    assert (other.output_error.cosine, other.output_error.finite) == (None, True)
    nan = accuracy.compare(evaluate(lambda x: {"y": x * np.nan}), evaluate())
    assert (nan.output_error.max_abs, nan.output_error.finite) == (None, False)
    assert nan.value == 0


def judged(evaluate, variant, base=lambda x: {"y": x}, settings=BAR, **options):
    found = accuracy.compare(evaluate(variant), evaluate(base))
    return {verdict.name: verdict for verdict in accuracy.verdicts(found, settings, **options)}


@pytest.mark.slow
def test_the_bar_decides_on_this_set(evaluate):
    wrong_first = lambda x: {"y": np.concatenate([-x[:1], x[1:]])}  # noqa: E731
    for bar, outcome in ((0.1, "reject"), (0.2, "accept"), (0.3, "accept")):
        verdict = judged(evaluate, wrong_first, settings=AccuracySettings(max_drop=bar))["accuracy"]
        assert (verdict.outcome, verdict.blocking, verdict.limit) == (outcome, True, bar)
        assert verdict.actual == pytest.approx(0.2)
    assert verdict.reason == (
        "top1 80.00 %, 20.00 points below the baseline's 100.00 % (2 lost, 0 gained of 10),"
        " within the 30.00 points allowed; on samples not seen up to 50.69 points may be lost"
        " (95 % confidence)"
    )


def test_the_baseline_has_no_bar_and_no_settings_no_verdict(evaluate):
    assert set(judged(evaluate, lambda x: {"y": x}, is_baseline=True)) == {"outputs"}
    assert set(judged(evaluate, lambda x: {"y": x}, settings=None)) == {"outputs"}


@pytest.mark.parametrize(
    ("variant", "base", "reason"),
    [
        (lambda x: {"y": x * np.inf}, None, "the outputs hold NaN or infinite values"),
        (lambda x: {"y": x * 0}, None, "the outputs are the same for every sample"),
        (
            lambda x: {"y": x * 0},
            lambda x: {"y": x * 0 + 1},
            "the outputs are the same for every sample, the baseline's too: look at the weights"
            " and the data",
        ),
        (
            lambda x: {"y": x, "anchors": x * 0},
            None,
            "the outputs are the same for every sample: output 'anchors': 3 entries are constant along"
            " dimension 1 (0, 1, 2), and they vary in the baseline",
        ),
    ],
)
def test_broken_outputs_are_rejected(evaluate, variant, base, reason):
    base = base or (lambda x: {"y": x, "anchors": x})
    verdict = judged(evaluate, variant, base)["outputs"]
    assert (verdict.outcome, verdict.blocking, verdict.reason) == ("reject", True, reason)


def masked(x, column=0, sign=-1.0):
    return {"y": np.where(np.arange(x.shape[1]) == column, sign * np.inf, x)}


def test_infinities_that_both_have_are_equal(evaluate):
    found = accuracy.compare(evaluate(masked), evaluate(masked))
    assert (found.output_error.max_abs, found.output_error.finite) == (0, True)
    near = accuracy.compare(evaluate(lambda x: masked(x + 0.5)), evaluate(masked)).output_error
    assert near.max_abs == pytest.approx(0.5)
    assert 0 < near.sqnr_db < 100
    assert judged(evaluate, masked, masked)["outputs"].outcome == "accept"


@pytest.mark.parametrize(
    "variant",
    [
        lambda x: {"y": x},
        lambda x: masked(x, column=1),
        lambda x: masked(x, sign=1.0),
        lambda x: {"y": np.concatenate([masked(x)["y"][:-1], x[-1:]])},
    ],
)
def test_infinities_at_other_places_are_rejected(evaluate, variant):
    verdict = judged(evaluate, variant, masked)["outputs"]
    assert verdict.outcome == "reject"
    assert "infinite at other places than the baseline's" in verdict.reason


@pytest.mark.parametrize(("noise", "outcome"), [(0.01, "accept"), (0.5, "inconclusive")])
def test_outputs_far_off_are_doubtful_where_no_labels_judge_them(evaluate, noise, outcome):
    def noisy(x):
        return {"y": x * (1 + noise)}

    labelled = judged(evaluate, noisy)["outputs"]
    assert (labelled.outcome, labelled.blocking) == ("accept", True)
    found = accuracy.compare(evaluate(noisy), evaluate(lambda x: {"y": x}))
    blind = found.model_copy(update={"metric": None, "value": None, "drop": None})
    (verdict,) = accuracy.verdicts(blind, None)
    assert (verdict.outcome, verdict.blocking) == (outcome, outcome == "accept")


def test_an_output_that_is_constant_in_the_baseline_may_be(evaluate):
    anchors = lambda x: {"y": x, "anchors": x * 0}  # noqa: E731
    assert judged(evaluate, anchors, anchors)["outputs"].outcome == "accept"
