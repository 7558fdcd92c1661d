"""What intervals over launches are worth, by simulation with the noise that machines have."""

import math

import numpy as np
import pytest

from optcli.measure.latency import launches
from optcli.results import Estimate
from optcli.results.statistics import percentile, percentile_over_rounds, ratio_interval, t_interval

LAUNCHES, ROUNDS, CALLS = 5, 8, 60


def simulate(rng, launch_sd, round_sd, bursts, number=LAUNCHES):
    """Milliseconds `[launches, rounds, calls]`: noise at each level, some calls lose a slice."""
    levels = rng.normal(0, launch_sd, (number, 1, 1)) + rng.normal(0, round_sd, (number, ROUNDS, 1))
    calls = np.abs(rng.normal(0, 0.03, (number, ROUNDS, CALLS)))
    lost = (rng.random((number, ROUNDS, CALLS)) < bursts) * rng.exponential(4, (number, ROUNDS, CALLS))
    return np.exp(levels + calls) + lost


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launch_sd", "round_sd", "bursts"), [(0.02, 0.03, 0.02), (0.0, 0.03, 0.05), (0.05, 0.1, 0.15)]
)
@pytest.mark.parametrize("q", [0.5, 0.95, 0.99])
def test_percentiles_lie_in_their_intervals_as_often_as_they_should(launch_sd, round_sd, bursts, q):
    rng = np.random.default_rng(5)
    truth = percentile(simulate(rng, launch_sd, round_sd, bursts, number=2000), q)
    inside = 0
    for _ in range(100):
        found = launches.percentile_over_launches(list(simulate(rng, launch_sd, round_sd, bursts)), q)
        assert found.low <= found.value <= found.high
        inside += found.low <= truth <= found.high
    assert inside >= 88


@pytest.mark.slow
@pytest.mark.parametrize("launch_sd", [0.0075, 0.02, 0.05])
def test_the_median_of_one_launch_lies_in_its_interval_as_often_as_it_should(launch_sd):
    """Its rounds say nothing of how launches differ: over rounds alone it seldom held the truth."""
    rng = np.random.default_rng(6)
    truth = percentile(simulate(rng, launch_sd, 0.01, 0.02, number=2000), 0.5)
    inside = alone = 0
    for _ in range(100):
        (rounds,) = simulate(rng, launch_sd, 0.01, 0.02, number=1)
        found = launches.percentile_over_launches([list(rounds)], 0.5)
        inside += found.low <= truth <= found.high
        bare = percentile_over_rounds(list(rounds), 0.5)
        alone += bare.low <= truth <= bare.high
    assert inside >= 95
    assert alone < 80


@pytest.mark.slow
@pytest.mark.parametrize("number", [3, 5])
def test_the_median_of_a_network_with_two_speeds_may_be_either(number):
    """Half of the calls take twice as long, by their input: the launches' medians lie on both sides."""
    rng = np.random.default_rng(11)

    def two_speeds(launches):
        noise = simulate(rng, 0.02, 0.03, 0.0, launches)
        return noise * np.where(rng.random(noise.shape) < 0.5, 2.0, 1.0)

    truth = percentile(two_speeds(2000), 0.5)
    found = [launches.percentile_over_launches(list(two_speeds(number)), 0.5) for _ in range(100)]
    assert sum(each.low <= truth <= each.high for each in found) >= 92
    assert all(each.high > 1.5 * each.low for each in found), "a bound that says that nobody knows"


@pytest.mark.parametrize("number", [2, 5, 24])
@pytest.mark.parametrize("tails", [None, 3])
def test_the_same_artifact_is_told_apart_as_seldom_as_it_should(number, tails):
    rng = np.random.default_rng(7)
    inside = 0
    for _ in range(300):
        noise = rng.normal(size=number) if tails is None else rng.standard_t(tails, number)
        found = launches.ratio_over_launches(list(0.01 * noise))
        inside += found.low <= 1 <= found.high
    assert inside >= 276


def test_five_percent_slower_is_told_apart_in_five_launches():
    rng = np.random.default_rng(8)
    told = 0
    for _ in range(100):
        pairs = [
            np.median(
                [math.log(percentile(a, 0.5) / percentile(b, 0.5)) for a, b in zip(x, y, strict=True)]
            )
            for x, y in zip(
                simulate(rng, 0.005, 0.02, 0.05), 1.05 * simulate(rng, 0.005, 0.02, 0.05), strict=True
            )
        ]
        told += launches.ratio_over_launches(pairs).high < 1
    assert told >= 95


def test_ratio_of_one_launch_has_no_interval_and_of_none_no_value():
    assert launches.ratio_over_launches([math.log(2)]).value == pytest.approx(2)
    assert launches.ratio_over_launches([math.log(2)]).low is None
    assert launches.ratio_over_launches([]) is None


def test_from_five_launches_on_they_tell_themselves_how_they_differ():
    values = list(0.01 * np.random.default_rng(1).normal(size=24))
    assert launches.mean_interval(values, 0.1) == t_interval(values)
    error = np.std(values, ddof=1) / math.sqrt(24)
    _, low, high = launches.mean_interval(values, 0.1)
    assert high - low == pytest.approx(2 * 2.0687 * error, rel=1e-3)
    assert launches.mean_interval(values[:5], 0.1) == t_interval(values[:5])


def test_few_launches_that_agree_are_not_believed_to_a_tenth_of_a_percent():
    mean, low, high = launches.mean_interval([1.0, 1.001, 0.999], 0.1)
    assert mean == pytest.approx(1.0)
    assert 0.09 < high - 1 < 0.14
    assert 0.09 < 1 - low < 0.14


@pytest.mark.parametrize("launch_sd", [0.005, 0.02, 0.05, 0.1])
def test_three_launches_hold_the_truth_at_least_nine_times_in_ten(launch_sd):
    rng = np.random.default_rng(11)
    inside, widths = 0, []
    for _ in range(1000):
        sides = rng.normal(0, launch_sd / math.sqrt(2), (2, 3))
        best = math.exp(min(sides[0]) - min(sides[1]))
        found = launches.ratio_over_launches(list(sides[0] - sides[1]), best=best)
        inside += found.low <= 1 <= found.high
        widths.append((found.high - found.low) / 2 / found.value)
    assert inside >= 900
    assert np.median(widths) <= 0.15


def test_a_percentile_with_too_few_samples_is_not_there():
    assert launches.percentile_over_launches([[[1.0, 2.0]], [[1.0, 2.0]]], 0.99) is None


def test_one_launch_is_never_surer_than_launches_are_alike():
    sure = launches.of_one_launch(Estimate(value=2.0, low=1.9999, high=2.0001), 0.1)
    assert math.log(sure.high / 2) == pytest.approx(4.303 * 0.10, rel=0.01)
    assert math.log(2 / sure.low) == pytest.approx(4.303 * 0.10, rel=0.01)
    unsure = launches.of_one_launch(Estimate(value=2.0, low=0.5, high=8), 0.1)
    assert (unsure.low, unsure.high) == (pytest.approx(0.47, abs=0.01), pytest.approx(8.5, abs=0.1))
    assert launches.of_one_launch(Estimate(value=2.0), 0.1).low is None
    assert launches.of_one_launch(None, 0.1) is None


def test_the_same_artifact_in_one_launch_is_told_apart_as_seldom_as_it_should():
    """A quiet machine: rounds agree to 0.1 %, launches do not."""
    rng = np.random.default_rng(10)
    inside = 0
    for _ in range(200):
        pair = rng.normal(0, 0.0075)
        rounds = [[[math.exp(x)] for x in rng.normal(level, 0.001, ROUNDS)] for level in (0, pair)]
        found = launches.of_one_launch(ratio_interval(*rounds))
        inside += found.low <= 1 <= found.high
    assert inside >= 184
