import itertools
import math
import subprocess
import sys

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import binom, binomtest, multinomial, norm

from optcli.results import statistics


def percentile_interval(samples, q, confidence=0.95):
    """Distribution-free interval of the q-quantile of independent samples; None: n is too small."""
    values = np.sort(np.asarray(samples).ravel())
    ranks = statistics.percentile_ranks(values.size, q, confidence)
    if ranks is None:
        return None
    return float(values[ranks[0] - 1]), float(values[ranks[1] - 1])


@pytest.mark.parametrize("count", [1, 2, 7, 20, 100, 368])
@pytest.mark.parametrize("q", [0.01, 0.25, 0.5, 0.9, 0.95, 0.99, 1.0])
def test_percentile_is_numpys_inverted_cdf(count, q):
    samples = np.random.default_rng(count).lognormal(size=count)
    assert statistics.percentile(samples, q) == np.percentile(samples, q * 100, method="inverted_cdf")


def test_samples_needed_for_each_percentile():
    assert [statistics.needed(q) for q in (0.5, 0.9, 0.95, 0.99)] == [6, 36, 72, 368]


@pytest.mark.parametrize(("count", "q"), [(6, 0.5), (40, 0.5), (72, 0.95), (368, 0.99), (3000, 0.99)])
def test_ranks_cover_and_are_the_narrowest_with_equal_tails(count, q):
    low, high = statistics.percentile_ranks(count, q)
    below = binom(count, q)
    assert 1 <= low < high <= count
    assert below.cdf(low - 1) <= 0.025 < below.cdf(low)
    assert below.sf(high - 1) <= 0.025 < below.sf(high - 2)


@pytest.mark.parametrize("q", [0.5, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.999])
def test_ranks_are_those_of_scipy(q, confidence):
    """Without `scipy.stats`, which takes a second to import."""
    tail = (1 - confidence) / 2
    for count in (1, 2, 3, 6, 7, 36, 72, 73, 240, 368, 999, 20_000):
        if count < statistics.needed(q, confidence):
            continue
        expected = (int(binom.ppf(tail, count, q)), int(binom.ppf(1 - tail, count, q)) + 1)
        assert statistics.percentile_ranks(count, q, confidence) == expected


@pytest.mark.parametrize("tail", [0.4, 0.1, 0.05, 0.025, 0.001])
def test_sign_bounds_are_order_statistics_of_scipys_ranks(tail):
    for count in range(1, 40):
        rank = int(binom.ppf(tail, count, 0.5))
        rank -= binom.cdf(rank, count, 0.5) > tail
        expected = (float(rank), float(count - 1 - rank)) if rank >= 0 else (-math.inf, math.inf)
        assert statistics.sign_bounds(range(count), tail) == expected


def test_interval_is_none_with_one_sample_too_few():
    samples = np.arange(1, 369)
    assert percentile_interval(samples, 0.99) == (
        statistics.percentile_ranks(368, 0.99)[0],
        368,
    )
    assert percentile_interval(samples[1:], 0.99) is None


def test_interval_over_rounds_covers_where_rounds_differ():
    """Rounds with a common shift: the binomial interval covers far too seldom, this one does not."""
    rng = np.random.default_rng(0)
    naive = honest = 0
    for _ in range(300):
        rounds = [10 + rng.normal() + 0.2 * rng.normal(size=16) for _ in range(8)]
        low, high = percentile_interval(np.concatenate(rounds), 0.5)
        naive += low <= 10 <= high
        estimate = statistics.percentile_over_rounds(rounds, 0.5)
        honest += estimate.low <= 10 <= estimate.high
    assert naive < 240
    assert honest >= 270


def test_interval_over_rounds_of_equal_rounds_is_the_binomial_one():
    rounds = [np.arange(1.0, 101.0)] * 8
    estimate = statistics.percentile_over_rounds(rounds, 0.5)
    assert (estimate.low, estimate.high) == percentile_interval(np.concatenate(rounds), 0.5)
    assert estimate.value == 50.0


def test_percentile_over_rounds_says_what_it_cannot_know():
    assert statistics.percentile_over_rounds([np.arange(40)] * 9, 0.99) is None
    assert statistics.percentile_over_rounds([np.arange(400)], 0.99).low is None


def walsh_brute_force(values, confidence):
    """The smallest shift that the exact signed-rank test, over all sign flips, does not reject."""
    count = len(values)
    ranks = np.arange(1, count + 1)
    sums = np.array([np.dot(ranks, s) for s in itertools.product((0, 1), repeat=count)])
    tail = (1 - confidence) / 2

    def rejected_below(shift):
        x = np.asarray(values) - shift
        statistic = (np.argsort(np.argsort(np.abs(x))) + 1)[x > 0].sum()
        return np.mean(sums >= statistic) <= tail

    walsh = sorted((a + b) / 2 for i, a in enumerate(values) for b in values[i:])
    middles = [walsh[0] - 1, *((a + b) / 2 for a, b in itertools.pairwise(walsh)), walsh[-1] + 1]
    return next(w for w, shift in zip(walsh, middles[1:], strict=True) if not rejected_below(shift))


@pytest.mark.parametrize("count", [6, 8, 10])
def test_hodges_lehmann_bound_equals_brute_force_over_all_sign_flips(count):
    values = list(np.random.default_rng(count).normal(0.1, 1, size=count))
    value, low, high = statistics.hodges_lehmann(values)
    assert low == pytest.approx(walsh_brute_force(values, 0.95))
    assert high == pytest.approx(-walsh_brute_force([-x for x in values], 0.95))
    assert low < value < high


def test_ratio_of_known_rounds():
    other = [np.full(5, 2.0) * (1 + 0.01 * r) for r in range(8)]
    base = [3 * each for each in other]
    estimate = statistics.ratio_interval(base, other)
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((3, 3, 3))


def test_ratio_forgives_one_disturbed_round():
    rng = np.random.default_rng(3)
    base = [rng.normal(4, 0.02, 16) for _ in range(8)]
    other = [rng.normal(2, 0.02, 16) for _ in range(8)]
    base[3] *= 50
    estimate = statistics.ratio_interval(base, other)
    assert estimate.value == pytest.approx(2, rel=0.02)
    assert 1.9 < estimate.low < 2 < estimate.high


def test_ratio_of_the_same_artifact_contains_one_as_often_as_it_says():
    rng = np.random.default_rng(1)
    contained = {2: 0, 4: 0, 8: 0}
    for rounds in contained:
        for _ in range(300):
            base = [[math.exp(x)] for x in rng.normal(0, 0.03, rounds)]
            other = [[math.exp(x)] for x in rng.normal(0, 0.03, rounds)]
            estimate = statistics.ratio_interval(base, other)
            contained[rounds] += estimate.low <= 1 <= estimate.high
    assert all(count >= 276 for count in contained.values()), contained


def test_ratio_pairs_only_rounds_that_both_have():
    assert statistics.ratio_interval([[2.0]], [[1.0], [9.0]]).value == pytest.approx(2)
    assert statistics.ratio_interval([[2.0]], [[1.0], [9.0]]).low is None
    assert statistics.ratio_interval([], [[1.0]]) is None


def likelihood_score(b, c, n, loss):
    """Tango's statistic with the restricted maximum found numerically instead of in closed form."""

    def negative(share):
        p_b, p_c = share + loss, share
        rest = 1 - p_b - p_c
        terms = [(b, p_b), (c, p_c), (n - b - c, rest)]
        if any(p < 0 or (k > 0 and p <= 0) for k, p in terms):
            return math.inf
        return -sum(k * math.log(p) for k, p in terms if k)

    found = minimize_scalar(
        negative, bounds=(max(0, -loss), (1 - loss) / 2), method="bounded", options={"xatol": 1e-12}
    )
    return (b - c - n * loss) / math.sqrt(n * (2 * found.x + loss * (1 - loss)))


@pytest.mark.parametrize(("b", "c", "n"), [(12, 2, 50), (3, 1, 360), (30, 10, 1000), (1, 6, 40)])
def test_drop_interval_ends_where_the_score_is_z(b, c, n):
    low, high = statistics.drop_interval(b, c, n)
    assert low < (b - c) / n < high
    z = norm.ppf(0.975)
    assert likelihood_score(b, c, n, low) == pytest.approx(z, abs=1e-3)
    assert likelihood_score(b, c, n, high) == pytest.approx(-z, abs=1e-3)


def test_drop_interval_without_discordant_pairs():
    z2 = norm.ppf(0.975) ** 2
    assert statistics.drop_interval(0, 0, 100) == pytest.approx((-z2 / (100 + z2), z2 / (100 + z2)))


def test_drop_interval_covers_by_enumeration():
    n, p_b, p_c = 40, 0.10, 0.05
    inside = sum(
        multinomial.pmf([b, c, n - b - c], n, [p_b, p_c, 1 - p_b - p_c])
        for b in range(16)
        for c in range(14)
        if (low := statistics.drop_interval(b, c, n)[0])
        <= p_b - p_c
        <= statistics.drop_interval(b, c, n)[1]
        and low >= -1
    )
    assert 0.93 <= inside <= 0.98


def test_drop_interval_refuses_impossible_counts():
    with pytest.raises(ValueError, match="within 3 samples"):
        statistics.drop_interval(3, 1, 3)


def test_mcnemar_is_the_exact_binomial_test():
    assert statistics.mcnemar(0, 0) == 1
    assert statistics.mcnemar(8, 1) == pytest.approx(2 * 10 / 512)
    assert statistics.mcnemar(4, 4) == 1


@pytest.mark.parametrize("regressed", [0, 1, 3, 4, 30, 400])
@pytest.mark.parametrize("improved", [1, 3, 5, 29, 380])
def test_mcnemar_is_that_of_scipy(regressed, improved):
    expected = binomtest(regressed, regressed + improved).pvalue
    assert statistics.mcnemar(regressed, improved) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("values", "off"),
    [
        ([1.1] * 10, 0.0),
        ([1.1] * 8 + [3.0, 0.2], 0.0),  # other work hits single rounds
        ([0.9, 1.0, 1.1, 1.2, 1.3] * 2, 1.57 * 0.2 / 1.1 / 10**0.5),
        ([0.9, 1.0, 1.1, 1.2, 1.3] * 8, 1.57 * 0.2 / 1.1 / 40**0.5),  # more rounds know it better
    ],
)
def test_how_far_a_median_may_be_off(values, off):
    assert statistics.median_uncertainty(values) == pytest.approx(off, abs=1e-9)


def test_monotone_is_the_nearest_rising_sequence():
    assert statistics.monotone([3, 1, 2, 5, 4]) == [2, 2, 2, 4.5, 4.5]
    assert statistics.monotone([1, 2, 3]) == [1, 2, 3]


@pytest.mark.slow
def test_nothing_here_imports_scipy_stats():
    code = """\
import sys
from optcli.results import statistics
statistics.percentile_over_rounds([[1.0, 2, 3, 4], [2.0, 3, 4, 5]], 0.5)
statistics.sign_bounds(range(9), 0.1)
statistics.hodges_lehmann(range(9))
statistics.t_interval([1.0, 2.0])
statistics.drop_interval(1, 2, 9)
statistics.mcnemar(1, 2)
assert "scipy.special" in sys.modules
assert "scipy.stats" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
