"""The two policies: error rates by simulation, presets and margins, words and numbers."""

import numpy as np
import pytest

from optcli import accuracy
from optcli.accuracy import pairs, policies
from optcli.report import wording
from optcli.results import Accuracy, Estimate
from optcli.results.statistics import drop_interval, mcnemar
from optcli.settings.accuracy import AccuracySettings


def counted(lost, gained, samples, right=0.8, confidence=0.95, both=True, **more):
    """`both`: with the 95 % interval, which non-inferiority does not look at, beside the bounds."""
    drop = (lost - gained) / samples
    low, high = drop_interval(lost, gained, samples) if both else (None, None)
    least, most = drop_interval(lost, gained, samples, 2 * confidence - 1)
    return Accuracy(
        metric="top1",
        value=right - drop,
        baseline=right,
        samples=samples,
        drop=Estimate(value=drop, low=low, high=high),
        bounds=Estimate(value=drop, low=least, high=most),
        confidence=confidence,
        regressed=lost,
        improved=gained,
        mcnemar_p=mcnemar(lost, gained),
        **more,
    )


def rates(samples, flips, drop, margin, simulations=20_000):
    """Shares of accept and reject; the verdict itself is asked, once for each pair of counts."""
    generator = np.random.default_rng([samples, int(1e4 * flips), int(1e4 * drop)])
    shares = [(flips + drop) / 2, (flips - drop) / 2, 1 - flips]
    drawn = generator.multinomial(samples, shares, size=simulations)[:, :2]
    distinct, counts = np.unique(drawn, axis=0, return_counts=True)
    settings = AccuracySettings(max_drop=margin, policy="non-inferiority")
    found = {"accept": 0, "reject": 0, "inconclusive": 0}
    for (lost, gained), count in zip(distinct, counts, strict=True):
        verdict = policies.non_inferiority(
            counted(int(lost), int(gained), samples, both=False), settings
        )
        found[verdict.outcome] += int(count)
    return {name: count / simulations for name, count in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("samples", "flips", "margin"),
    [(1000, 0.03, 0.01), (2000, 0.06, 0.01), (5000, 0.03, 0.01), (1000, 0.06, 0.02)],
)
def test_wrong_verdicts_at_exactly_the_margin_are_as_rare_as_promised(samples, flips, margin):
    found = rates(samples, flips, margin, margin)
    assert 0.035 <= found["accept"] <= 0.065
    assert 0.035 <= found["reject"] <= 0.065


@pytest.mark.slow
def test_what_is_harmless_passes_and_what_is_not_fails_with_enough_samples():
    assert rates(5000, 0.03, 0.0, 0.01)["accept"] > 0.95
    assert rates(5000, 0.03, 0.02, 0.01)["reject"] > 0.95
    few = rates(500, 0.03, 0.0, 0.01)
    assert few["inconclusive"] > 0.5  # and not a wrong answer
    assert few["reject"] < 0.01


def test_one_policy_decides_and_both_are_given():
    found = counted(9, 1, 500)
    for policy, other in (("fixed-set", "non-inferiority"), ("non-inferiority", "fixed-set")):
        settings = AccuracySettings(policy=policy, max_drop=0.02)
        verdicts = {each.name: each for each in accuracy.verdicts(found, settings)}
        assert set(verdicts) == {"accuracy", other}
        assert (verdicts["accuracy"].blocking, verdicts[other].blocking) == (True, False)
    assert verdicts["accuracy"].outcome == "inconclusive"
    assert verdicts["fixed-set"].outcome == "accept"
    needed = verdicts["accuracy"].samples_needed
    # (1.645 + 0.842)² · 0.02 / (0.02 - 0.016)²
    assert needed == pytest.approx(2.487**2 * 0.02 / 0.004**2, rel=0.001)
    assert (
        f"{-(-needed // 10) * 10:,} samples would decide, the set has 500"
        in verdicts["accuracy"].reason
    )
    assert "McNemar's p 0.021" in verdicts["accuracy"].reason


@pytest.mark.parametrize(
    ("settings", "bar", "outcome"),
    [
        ({}, 0.01, "accept"),
        ({"preset": "mlperf-99"}, 0.008, "accept"),
        ({"preset": "mlperf-99.9"}, 0.0008, "reject"),
        ({"min_ratio": 0.995}, 0.004, "accept"),
        ({"max_drop": 0.003}, 0.003, "reject"),
    ],
)
def test_bars_as_drop_ratio_and_preset(settings, bar, outcome):
    found = policies.fixed_set(counted(4, 0, 1000), AccuracySettings(**settings))
    assert found.limit == pytest.approx(bar)
    assert found.outcome == outcome
    if "preset" in settings:
        assert settings["preset"] in found.reason


def test_only_one_bar_may_be_set():
    with pytest.raises(ValueError, match="found max_drop beside preset, wanted one of them"):
        AccuracySettings(max_drop=0.1, preset="mlperf-99")


def test_the_margin_may_differ_from_the_bar_and_confidence_is_kept():
    settings = AccuracySettings(policy="non-inferiority", max_drop=0.0, margin=0.05)
    found = policies.non_inferiority(counted(0, 0, 200), settings)
    assert (found.outcome, found.limit) == ("accept", 0.05)
    strict = policies.non_inferiority(counted(0, 0, 200, confidence=0.99), settings)
    assert strict.interval[1] > found.interval[1]
    assert "99 % confidence" in strict.reason


def test_a_reason_rounds_the_drop_as_the_table_does():
    """2000 and 1999 of 4000 are right: their difference is a bit less than 1/4000 in floating point."""
    found = counted(1, 0, 4000).model_copy(
        update={"baseline": 2000 / 4000, "value": 1999 / 4000, "drop": Estimate(value=1 / 4000)}
    )
    assert wording.change(found) == "-0.03"
    reason = policies.fixed_set(found, AccuracySettings(max_drop=0.01)).reason
    assert "0.03 points below the baseline's" in reason


def test_lower_is_better_for_errors():
    found = Accuracy(
        metric="calibration_error",
        value=0.05,
        baseline=0.04,
        samples=1000,
        better="lower",
        drop=Estimate(value=0.01, low=0.005, high=0.015),
        bounds=Estimate(value=0.01, low=0.006, high=0.014),
    )
    verdict = policies.fixed_set(found, AccuracySettings(metric="calibration_error", max_drop=0.005))
    assert verdict.outcome == "reject"
    assert "1.00 points above the baseline's 4.00 %" in verdict.reason
    assert policies.fixed_set(found, AccuracySettings(min_ratio=0.9)).limit == pytest.approx(0.04 / 9)


def test_too_few_samples_for_the_margin_are_said_with_the_number():
    """measurement's table: ψ 3 %, margin 1 point, nothing lost: 1,855."""
    flag = policies.too_few(counted(18, 12, 1000), AccuracySettings())
    assert "1000 samples are few for a margin of 1.00 points" in flag.text
    assert policies.samples_needed(counted(18, 12, 1000), 0.01, drop=0.0) == 1855
    assert flag.text.endswith("about 1,860")
    assert policies.too_few(counted(18, 12, 1000), AccuracySettings(max_drop=0.02)) is None
    # What was told already needs no more.
    assert policies.too_few(counted(15, 15, 1000), AccuracySettings()) is None


def test_the_number_needed_is_never_below_the_number_there():
    for lost in range(3, 30):
        found = counted(lost, 2, 700)
        verdict = policies.non_inferiority(found, AccuracySettings())
        if verdict.outcome == "inconclusive" and verdict.samples_needed is not None:
            assert verdict.samples_needed > 700


def test_without_an_interval_nobody_can_tell():
    found = Accuracy(metric="m", value=0.5, baseline=0.5, samples=1, drop=Estimate(value=0.0))
    assert policies.non_inferiority(found, AccuracySettings()).outcome == "inconclusive"


def test_the_classes_that_changed_most_come_with_their_counts():
    label = np.array([0] * 10 + [1] * 10 + [2] * 10)
    before = np.ones(30, bool)
    before[25:] = False
    now = before.copy()
    now[10:14] = False  # four of class 1 are lost
    now[29] = True  # one of class 2 is gained
    one, two = pairs._class_changes(label, now, before)
    assert (one.label, one.samples, one.regressed, one.improved) == (1, 10, 4, 0)
    assert (one.value, one.baseline) == (0.6, 1.0)
    assert (two.label, two.regressed, two.improved) == (2, 0, 1)
