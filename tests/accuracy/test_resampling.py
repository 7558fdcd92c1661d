"""The bootstrap's intervals: bias-corrected and accelerated, against SciPy's and by simulation."""

import numpy as np
import pytest
from scipy.stats import bootstrap

from optcli.accuracy import bounds


class Ratio:
    """Σ right / Σ all, as IoU is: a metric that is no mean over samples."""

    def __init__(self, right, every):
        self.right, self.every = right, every

    def resampled(self, records, counts):
        return counts @ self.right / (counts @ self.every)


class Variance:
    """Biased in resamples, and its spread grows with it."""

    def __init__(self, x):
        self.x = x

    def resampled(self, records, counts):
        share = counts / counts.sum(axis=1, keepdims=True)
        return share @ self.x**2 - (share @ self.x) ** 2


def interval(metric, count, shares=(0.05, 0.95)):
    value = float(metric.resampled({}, np.ones((1, count)))[0])
    drawn = bounds.resampled(metric, {}, np.arange(count))
    without = bounds.left_out(metric, {}, np.arange(count))
    return bounds.bca(value, drawn, without, shares), np.quantile(drawn, shares)


def test_it_is_scipys():
    generator = np.random.default_rng(5)
    every = generator.lognormal(0, 1, 50)
    right = every * generator.beta(2, 5, 50)
    found, percentiles = interval(Ratio(right, every), 50, (0.025, 0.975))
    theirs = bootstrap(
        (right, every),
        lambda a, b, axis=-1: a.sum(axis) / b.sum(axis),
        paired=True,
        vectorized=True,
        method="BCa",
        n_resamples=20000,
        random_state=1,
    ).confidence_interval
    assert found == pytest.approx([theirs.low, theirs.high], abs=3e-3)
    assert np.abs(percentiles - found).max() > 5e-3, "else this tells nothing"


@pytest.mark.long
@pytest.mark.slow
def test_both_ends_miss_more_alike_than_percentiles_do():
    """At 90 % each end may miss 5 %: percentiles miss nearly always at one end, BCa far less so."""
    truth, count, sets = 1.0, 100, 200
    missed = {"bca": [0, 0], "percentiles": [0, 0]}
    for seed in range(sets):
        x = np.random.default_rng(1000 + seed).exponential(1, count)
        for name, (low, high) in zip(missed, interval(Variance(x), count), strict=True):
            missed[name][0] += truth < low
            missed[name][1] += truth > high
    ours, plain = missed["bca"], missed["percentiles"]
    assert plain[0] < 0.02 * sets <= ours[0] <= 0.08 * sets, "where percentiles hardly ever miss"
    assert ours[1] < 0.8 * plain[1]
    assert ours[1] - ours[0] < 0.6 * (plain[1] - plain[0])


def test_no_difference_has_no_interval_around_it():
    same = np.zeros(100)
    assert bounds.bca(0.0, same, same[:10], (0.025, 0.975)) == [0.0, 0.0]


def test_a_value_beyond_all_resamples_still_has_an_interval():
    drawn = np.linspace(0.1, 0.2, 100)
    for value in (0.0, 0.5):
        low, high = bounds.bca(value, drawn, np.array([0.1, 0.2, 0.9]), (0.025, 0.975))
        assert 0.1 <= low <= high <= 0.2


def test_each_sample_is_left_out_once(monkeypatch):
    x = np.arange(7.0)
    found = bounds.left_out(Ratio(x, np.ones(7)), {}, np.arange(7))
    assert found == pytest.approx((x.sum() - x) / 6)
    monkeypatch.setattr(bounds, "_CELLS", 14)
    assert np.array_equal(bounds.left_out(Ratio(x, np.ones(7)), {}, np.arange(7)), found)
    monkeypatch.setattr(bounds, "GROUPS", 3)
    parts = [x[0] + x[3] + x[6], x[1] + x[4], x[2] + x[5]]
    sizes = np.array([3, 2, 2])
    grouped = bounds.left_out(Ratio(x, np.ones(7)), {}, np.arange(7))
    assert grouped == pytest.approx((x.sum() - parts) / (7 - sizes))
