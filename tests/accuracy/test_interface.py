"""Outputs that cannot be compared, or that clients would not find again: never accepted in silence."""

import numpy as np
import pytest
from plain_network import BAR, Samples

from optcli import accuracy
from optcli.accuracy.verdicts import _outputs
from optcli.results.outcomes import OutputError
from optcli.settings.accuracy import AccuracySettings


def base(x):
    return {"y": x, "z": x[:, :1] * 2}


def judged(evaluate, variant, settings=BAR, baseline=base, samples=None):
    made = [evaluate(each, samples=samples, settings=settings) for each in (variant, baseline)]
    found = accuracy.compare(*made)
    return found, {each.name: each for each in accuracy.verdicts(found, settings)}["outputs"]


CHANGES = [
    (
        lambda x: {"y": x},
        "removed",
        "reject",
        "output 'z' is missing: the baseline has 2 outputs, this 1",
    ),
    (
        lambda x: {**base(x), "w": x},
        "added",
        "reject",
        "output 'w' is new: the baseline has 2 outputs, this 3 outputs",
    ),
    (
        lambda x: {"y": x, "scores": base(x)["z"]},
        "renamed",
        "inconclusive",
        "output 'z' is called 'scores' here",
    ),
    (
        lambda x: {"z": base(x)["z"], "y": x},
        "order",
        "inconclusive",
        "another order: y, z is z, y here",
    ),
    (
        lambda x: {"y": x, "z": x[:, :2]},
        "shape",
        "reject",
        "output 'z' has the shape [1] for a sample, here [2]",
    ),
    (
        lambda x: {"y": x, "z": (x[:, :1] * 9).astype(np.int64)},
        "dtype",
        "reject",
        "output 'z' is float32, here int64",
    ),
]


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize(("variant", "what", "outcome", "said"), CHANGES)
def test_another_interface_blocks_and_is_said(evaluate, variant, what, outcome, said, labelled):
    settings = AccuracySettings(output="y") if labelled else None
    found, verdict = judged(evaluate, variant, settings)
    assert [change.what for change in found.output_error.changes] == [what]
    assert (verdict.outcome, verdict.blocking) == (outcome, True)
    assert said in verdict.reason


def test_another_interface_can_be_declared_and_is_told_all_the_same(evaluate):
    settings = AccuracySettings(output="y", interface="any")
    found, verdict = judged(evaluate, CHANGES[2][0], settings)
    assert (verdict.outcome, verdict.blocking) == ("accept", True)
    assert "output 'z' is called 'scores' here" in verdict.reason
    assert found.output_error.max_abs == 0


def test_outputs_in_another_order_are_compared_by_name(evaluate):
    found, _ = judged(evaluate, CHANGES[3][0], AccuracySettings(output="y"))
    assert (found.output_error.max_abs, found.output_error.compared) == (0, True)


def test_half_precision_is_no_other_interface(evaluate):
    found, verdict = judged(evaluate, lambda x: {n: a.astype(np.float16) for n, a in base(x).items()})
    assert (found.output_error.changes, verdict.outcome) == ((), "accept")


BROKEN_BASELINES = [
    (lambda x: {"y": x * 0}, "the baseline's outputs are the same for every sample"),
    (lambda x: {"y": x * np.nan}, "the baseline's outputs hold NaN or infinite values"),
    (lambda x: {"y": x * np.inf}, "the baseline's outputs hold NaN or infinite values"),
]


@pytest.mark.parametrize("settings", [BAR, None])
@pytest.mark.parametrize(("baseline", "said"), BROKEN_BASELINES)
def test_nothing_is_accepted_beside_a_broken_baseline(evaluate, baseline, said, settings):
    found, verdict = judged(evaluate, lambda x: {"y": x}, settings, baseline)
    assert (verdict.outcome, verdict.blocking) == ("inconclusive", True)
    assert said in verdict.reason
    others = accuracy.verdicts(found, settings)
    assert not any(each.outcome == "accept" and each.blocking for each in others)
    own = accuracy.compare(*[evaluate(baseline, settings=settings)] * 2)
    assert accuracy.verdicts(own, settings, is_baseline=True)[0].outcome == "reject"


def test_zero_for_one_sample_is_nothing_to_compare_with(evaluate):
    one = Samples(1)
    zero = lambda x: {"y": x * 0}  # noqa: E731
    _, verdict = judged(evaluate, zero, None, zero, samples=one)
    assert verdict.outcome == "inconclusive"


def test_values_that_no_one_can_pair_need_labels():
    apart = OutputError(finite=True, constant=False, compared=False)
    assert _outputs(apart, None, labelled=False).outcome == "inconclusive"
    assert _outputs(apart, None, labelled=False).blocking
    assert _outputs(apart, BAR, labelled=True).outcome == "accept"


def test_a_small_output_that_is_wrong_is_not_hidden_by_a_large_one(evaluate):
    large = lambda x: {"y": 1000 * x, "z": x[:, :1]}  # noqa: E731
    broken = lambda x: {"y": 1000 * x, "z": -x[:, :1]}  # noqa: E731
    found, verdict = judged(evaluate, broken, None, large)
    assert found.output_error.sqnr_db > 40
    assert found.output_error.worst.output == "z"
    assert verdict.outcome == "inconclusive"
    assert "output 'z' lies far from the baseline's (-6.0 dB" in verdict.reason


def test_one_wrong_sample_is_not_hidden_by_the_others(evaluate):
    samples = Samples(400)
    first = samples.x[0].copy()

    def broken(x):
        return {"y": np.where((x == first).all(axis=1, keepdims=True), -x, x)}

    found, verdict = judged(evaluate, broken, None, lambda x: {"y": x}, samples=samples)
    assert found.output_error.sqnr_db > 20
    assert found.output_error.far_samples == 1
    assert "1 of 400 samples lies far from the baseline's (under 10 dB)" in verdict.reason


def test_whole_numbers_are_compared_by_how_many_differ(evaluate):
    classes = lambda x: {"y": (x > 0).astype(np.int64) + 100}  # noqa: E731
    other = lambda x: {"y": (x > 0.3).astype(np.int64) + 100}  # noqa: E731
    found, verdict = judged(evaluate, other, None, classes)
    assert found.output_error.sqnr_db > 40, "100 and 101 lie near each other, as numbers"
    assert found.output_error.worst.sqnr_db < 20
    assert verdict.outcome == "inconclusive"


def test_a_baseline_that_guesses_blocks_everybody(evaluate):
    samples = Samples(90)
    backwards = [int(row.argmin()) for row in samples.x]
    samples.labels = [backwards[i] if i % 3 else int(row.argmax()) for i, row in enumerate(samples.x)]
    found = accuracy.compare(evaluate(samples=samples), evaluate(samples=samples))
    assert found.value == pytest.approx(1 / 3)
    (labels,) = [v for v in accuracy.verdicts(found, BAR, is_baseline=True) if v.name == "labels"]
    assert (labels.outcome, labels.blocking) == ("inconclusive", True)
    judged_ones = {v.name: v for v in accuracy.verdicts(found, BAR)}
    for name in ("accuracy", "non-inferiority"):
        assert judged_ones[name].outcome == "inconclusive"
        assert "the baseline is no valid reference: top1" in judged_ones[name].reason
