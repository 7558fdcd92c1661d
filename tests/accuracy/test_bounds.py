"""Bounds of the loss on samples not seen: exact where such exist, and their misses by simulation."""

from functools import lru_cache

import numpy as np
import pytest
from plain_network import Samples

from optcli import accuracy
from optcli.accuracy import bounds, metrics, pairs, policies
from optcli.accuracy.metrics._user import UserMetric
from optcli.results import Accuracy, Estimate
from optcli.settings.accuracy import AccuracySettings

NOMINAL = 0.05
SETS = 300


@pytest.mark.parametrize("count", [8, 20, 50, 100, 500])
@pytest.mark.parametrize("changed", [0, 1, 2, 5])
def test_samples_that_change_or_do_not_have_clopper_and_pearsons_bound(count, changed):
    from scipy.stats import beta

    exact = beta.ppf(0.95, changed + 1, count - changed)
    assert bounds._worst(changed, 0, count, 0.05) == pytest.approx(exact)
    assert bounds.counted(changed, 0, count, 0.05)[1] >= exact - 1e-12


def test_the_bounds_are_the_same_in_both_directions():
    low, high = bounds.counted(3, 7, 60, 0.05)
    assert bounds.counted(7, 3, 60, 0.05) == pytest.approx((-high, -low), abs=1e-6)


def test_all_samples_changed_leave_nothing_open():
    assert bounds.counted(8, 0, 8, 0.05)[1] == 1
    assert bounds.counted(4, 4, 8, 0.05)[1] <= 1


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("count", [8, 20, 50, 100])
@pytest.mark.parametrize("rare", [0.01, 0.03, 0.1])
@pytest.mark.parametrize("gained", [0.0, 0.3])
def test_right_and_wrong_miss_as_rarely_as_they_say(count, rare, gained):
    """`rare`: the share of samples that are lost; `gained`: so many times that are gained."""
    generator = np.random.default_rng([count, int(1000 * rare), int(10 * gained)])
    shares = [rare, gained * rare, 1 - rare - gained * rare]
    drawn = generator.multinomial(count, shares, size=4000)[:, :2]
    upper = lru_cache(None)(lambda lost, won: bounds.counted(lost, won, count, NOMINAL)[1])
    truth = rare * (1 - gained)
    missed = np.mean([upper(lost, won) < truth for lost, won in drawn.tolist()])
    assert missed <= NOMINAL + 3 * (NOMINAL * (1 - NOMINAL) / 4000) ** 0.5


class Mean:
    """A metric of a user's own: the mean of a number for each sample."""

    def made(self, generator, count, rare):
        score = generator.random(count) * 0.02 + 0.8
        lost = generator.random(count) < rare
        after = np.where(lost, 0.0, score + generator.normal(0, 1e-3, count))
        return {"score": score}, {"score": np.clip(after, 0, 1)}

    def truth(self, rare):
        return rare * 0.81

    def metric(self):
        return UserMetric(reference="r", folder=".")


class Equal(Mean):
    """Every sample has the same value, and loses all of it or nothing: what a bootstrap cannot see."""

    def made(self, generator, count, rare):
        after = (generator.random(count) >= rare).astype(float)
        return {"score": np.ones(count)}, {"score": after}

    def truth(self, rare):
        return rare


class Ious(Mean):
    """Three classes in every image; lost images have all pixels wrong."""

    def made(self, generator, count, rare):
        theirs = generator.integers(200, 400, (count, 3))
        right = (theirs * 0.9).astype(int)
        before = np.stack([right, theirs, theirs], axis=1)
        lost = generator.random(count) < rare
        after = before.copy()
        after[lost, 0] = 0
        return {"areas": before}, {"areas": after}

    def truth(self, rare):
        before = 0.9 / 1.1
        return before - 0.9 * (1 - rare) / (2 - 0.9 * (1 - rare))

    def metric(self):
        return metrics.make(AccuracySettings(metric="miou"), None)


class Boxes(Mean):
    """One box in every image, found with the same score; in lost images another place is named."""

    def made(self, generator, count, rare):
        every = np.arange(count)
        both = []
        for lost in (np.zeros(count, bool), generator.random(count) < rare):
            both.append(
                {
                    "image": every,
                    "truth_sample": every,
                    "truth_class": np.zeros(count, int),
                    "detection_sample": every,
                    "detection_class": np.zeros(count, int),
                    "detection_score": generator.random(count),
                    "detection_matched": np.where(lost, 0, 1023),
                    "detection_ignored": np.zeros(count, int),
                }
            )
        return tuple(both)

    def truth(self, rare):
        return 1 - (1 - rare) ** 2

    def metric(self):
        return metrics.make(AccuracySettings(metric="map"), None)


class Confidence(Mean):
    """All right with a confidence of 0.95; what is lost is wrong with the same confidence."""

    def made(self, generator, count, rare):
        lost = generator.random(count) < rare
        same = {"confidence": np.full(count, 0.95), "classes": np.full(count, 10)}
        return {"rank": np.zeros(count), **same}, {"rank": lost.astype(int), **same}

    def truth(self, rare):
        return abs(0.05 - rare) - 0.05

    def metric(self):
        return metrics.make(AccuracySettings(metric="calibration_error"), None)


def upper(metric, before, after, count):
    """The upper bound of the loss, as a comparison works it out."""
    clusters = np.arange(count)
    sign = -1 if metric.better() == "lower" else 1
    drops, without = (
        sign * (each(metric, before, clusters) - each(metric, after, clusters))
        for each in (bounds.resampled, bounds.left_out)
    )
    value = sign * (metric.value(before) - metric.value(after))
    largest = max(metric.largest_change(before), metric.largest_change(after))
    bca = bounds.bca(value, drops, without, [1 - NOMINAL])[0]
    return max(bca, bounds.of_drops(drops, largest, count, NOMINAL)[1]), bca


# What is lost in so many samples that some sets show none of it, where a bootstrap fails.
CASES = [(8, 0.05), (8, 0.2), (20, 0.12), (20, 0.05), (50, 0.02), (50, 0.05), (100, 0.025), (100, 0.01)]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "count", "rare"),
    [(Equal, *case) for case in CASES]
    + [(kind, *case) for kind in (Mean, Ious, Confidence) for case in CASES[::2]]
    + [(Boxes, *case) for case in CASES[:6:2]],  # each set takes as long as ten of others
)
def test_upper_bounds_of_every_metric_miss_as_rarely_as_they_say(monkeypatch, kind, count, rare):
    sets = 60 if kind is Boxes else SETS
    monkeypatch.setattr(bounds, "RESAMPLES", 300 if kind is Boxes else 600)
    made, missed = kind(), 0
    for seed in range(sets):
        before, after = made.made(np.random.default_rng([seed, count]), count, rare)
        missed += upper(made.metric(), before, after, count)[0] < made.truth(rare) - 1e-9
    assert missed / sets <= NOMINAL + 3 * (NOMINAL * (1 - NOMINAL) / sets) ** 0.5


def test_a_bootstrap_alone_would_have_missed(monkeypatch):
    monkeypatch.setattr(bounds, "RESAMPLES", 500)
    missed = [0, 0]
    for seed in range(100):
        before, after = Equal().made(np.random.default_rng(seed), 20, 0.05)
        found = upper(Equal().metric(), before, after, 20)
        missed = [missed[i] + (found[i] < 0.05) for i in range(2)]
    assert missed[0] <= 11, "5 of 100 are nominal, 11 three standard errors more"
    assert missed[1] > 25


def same(count, metric="own", largest=1.0, **more):
    """What nothing changed in gives, as `pairs.compare` fills it in."""
    most = bounds.at_best(count, largest, 0.05)
    return Accuracy(
        metric=metric,
        value=0.8,
        baseline=0.8,
        samples=count,
        distinct=count,
        largest_change=largest,
        drop=Estimate(value=0.0, low=-most, high=most),
        bounds=Estimate(value=0.0, low=-most, high=most),
        **more,
    )


def test_eight_samples_claim_nothing_and_say_how_many_would():
    settings = AccuracySettings(max_drop=0.01, policy="non-inferiority")
    verdict, _ = policies.judged(same(8), settings)
    assert (verdict.outcome, verdict.blocking) == ("inconclusive", True)
    assert "8 samples cannot show a loss below 31.23 points: evaluate on at least" in verdict.reason
    assert verdict.samples_needed >= 299
    fixed = policies.fixed_set(same(8), AccuracySettings(max_drop=0.01))
    assert fixed.outcome == "accept"
    assert "on samples not seen up to 31.23 points may be lost (95 % confidence)" in fixed.reason


def test_five_hundred_samples_of_which_none_changed_are_accepted_at_one_point():
    settings = AccuracySettings(max_drop=0.01, policy="non-inferiority")
    assert policies.judged(same(500), settings)[0].outcome == "accept"
    assert bounds.needed(0.01, 1.0, 0.05) == 299
    assert policies.too_few(same(500), settings) is None
    assert policies.too_few(same(200), settings) is not None
    assert policies.judged(same(299), settings)[0].outcome == "accept"
    assert policies.judged(same(298), settings)[0].outcome == "inconclusive"
    assert bounds.needed(0.0, 1.0, 0.05) is None
    assert (
        "no number of samples shows a loss of 0"
        in policies.non_inferiority(same(500), AccuracySettings(max_drop=0.0)).reason
    )


def test_a_metric_of_unknown_range_has_no_bound(evaluate, tmp_path):
    code = "def loss(outputs, target, meta):\n    return float(40 + outputs['y'].max())\n"
    (tmp_path / "own.py").write_text(code)
    settings = AccuracySettings(metric="python:own.py:loss", policy="non-inferiority")
    made = evaluate(settings=settings)
    found = accuracy.compare(made, made)
    assert (found.bounds, found.drop.high, found.largest_change) == (None, None, None)
    verdict = next(v for v in accuracy.verdicts(found, settings) if v.name == "accuracy")
    assert verdict.outcome == "inconclusive"
    assert "range = (low, high)" in verdict.reason
    (tmp_path / "own.py").write_text(code + "loss.range = (0, 100)\n")
    made = evaluate(settings=settings)
    assert accuracy.compare(made, made).largest_change == 100
    assert accuracy.compare(made, made).bounds.high == pytest.approx(100 * (1 - 0.05**0.1), rel=0.02)


class Again(Samples):
    """The same few samples over and over, under names of their own."""

    def __init__(self, different, count):
        super().__init__(different)
        rows = np.arange(count) % different
        self.x, self.labels = self.x[rows], [self.labels[row] for row in rows]
        self.ids = [f"copy-{index}" for index in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["top1", "calibration_error"])
def test_samples_of_the_same_content_are_one_piece_of_evidence(evaluate, metric):
    """12 images that a loop of links shows 41 times each."""
    settings = AccuracySettings(metric=metric, policy="non-inferiority", max_drop=0.05)
    shift = lambda x: {"y": x + 0.1}  # noqa: E731
    once = accuracy.compare(
        evaluate(shift, samples=Samples(12), settings=settings),
        evaluate(samples=Samples(12), settings=settings),
    )
    again = accuracy.compare(
        evaluate(shift, samples=Again(12, 492), settings=settings),
        evaluate(samples=Again(12, 492), settings=settings),
    )
    assert (once.distinct, again.distinct, again.samples) == (12, 12, 492)
    assert again.bounds.low == pytest.approx(once.bounds.low, abs=1e-6)
    assert again.bounds.high == pytest.approx(once.bounds.high, abs=1e-6)
    told = {v.name: v for v in accuracy.verdicts(again, settings)}
    assert told["accuracy"].outcome == "inconclusive"
    assert "12 samples cannot show a loss below" in told["accuracy"].reason
    assert "492" in told["fixed-set"].reason
    assert ", 12 of them different" in told["fixed-set"].reason
    advice = {v.name: v for v in accuracy.verdicts(again, settings, is_baseline=True)}["samples"]
    assert "only 12 of 492 samples differ by content" in advice.reason
    assert "samples" not in {v.name for v in accuracy.verdicts(once, settings, is_baseline=True)}


def test_one_content_among_many_counts_by_its_weight():
    heavy = np.array([0] * 481 + list(range(1, 12)))
    assert 1 < bounds.effective(heavy) < 1.1
    assert bounds.effective(np.arange(500)) == 500
    assert bounds.effective(np.array([*range(9998), 9997, 9997])) == pytest.approx(9994, rel=1e-3)


def test_resamples_without_a_number_give_no_interval(evaluate, monkeypatch):
    made = evaluate(settings=AccuracySettings(metric="calibration_error"))
    few = np.full(bounds.RESAMPLES, 0.01)
    few[: bounds.RESAMPLES // 50] = np.nan
    arrays = {"resampled": few, "left_out": np.zeros(10)}
    monkeypatch.setattr(type(made), "array", lambda self, name: arrays.get(name))
    found = pairs._bootstrapped(made, made, 0.95)
    assert set(found) == {"drop"}
    assert found["drop"].high is None
