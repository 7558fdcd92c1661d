"""The line through a sweep: published numbers, brute force, and when it is no line."""

import numpy as np
import pytest
from scipy.optimize import minimize

from optcli.measure.latency.fit import fit
from optcli.measure.latency.sweep import budget
from optcli.results import Estimate, SweepPoint

SIZES = (1, 2, 4, 8, 16, 32)


def line(fixed, each, sizes=SIZES):
    return [fixed + each * size for size in sizes]


def noisy(fixed, each, launches=5, noise=0.02, seed=0):
    rng = np.random.default_rng(seed)
    times = np.array(line(fixed, each))
    return (times * (1 + noise * rng.standard_normal((launches, len(times))))).tolist()


def test_four_known_points_give_the_known_line():
    found = fit((1, 2, 4, 8), [[25, 27, 34, 48]])
    assert found.fixed_ms.value == pytest.approx(20.91, abs=0.005)
    assert found.per_image_ms.value == pytest.approx(3.357, abs=0.0005)
    assert found.largest_residual == pytest.approx(0.029, abs=0.001)
    assert found.linear
    # Its t-interval by the textbook: 4.303 * sqrt(s^2 (1/n + mean^2 / Sxx)).
    assert found.fixed_ms.high - found.fixed_ms.value == pytest.approx(2.738, abs=0.001)


@pytest.mark.parametrize("fixed", [5.0, 0.0])
def test_it_is_the_best_non_negative_line_of_weighted_squares(fixed):
    launches = noisy(fixed, 3.0, noise=0.05)
    medians, middle = np.array(launches), np.median(launches, axis=0)
    relative = np.var(medians / middle, axis=0, ddof=1)
    weights = 1 / ((relative + relative.mean()) / 2 * middle**2)

    def loss(two):
        return float(np.sum(weights * (two[0] + two[1] * np.array(SIZES) - middle) ** 2))

    options = {"xatol": 1e-10, "fatol": 1e-14, "maxiter": 20000, "maxfev": 20000}
    starts = [(1.0, 1.0), (0.0, 3.0)]
    best = min(
        (
            minimize(loss, start, method="Nelder-Mead", bounds=[(0, None), (0, None)], options=options)
            for start in starts
        ),
        key=lambda each: each.fun,
    )
    found = fit(SIZES, launches)
    assert [found.fixed_ms.value, found.per_image_ms.value] == pytest.approx(best.x, abs=1e-5)


def test_a_point_that_varies_weighs_less():
    launches = np.array(noisy(10, 3, noise=0.005))
    launches[:, 0] = line(10, 3)[0] * np.array([0.5, 2.5, 2.1, 0.6, 2.3])
    alike = fit(SIZES, [np.median(launches, axis=0).tolist()])
    weighted = fit(SIZES, launches.tolist())
    assert abs(weighted.fixed_ms.value - 10) < abs(alike.fixed_ms.value - 10)


@pytest.mark.slow
def test_intervals_hold_the_truth_as_often_as_they_say():
    held = [0, 0]
    for seed in range(200):
        found = fit(SIZES, noisy(10, 3, seed=seed))
        for index, (estimate, truth) in enumerate([(found.fixed_ms, 10), (found.per_image_ms, 3)]):
            held[index] += estimate.low <= truth <= estimate.high
    assert min(held) >= 186


def test_a_slow_launch_widens_the_interval():
    calm = fit(SIZES, [line(10, 3)] * 5)
    uneven = fit(SIZES, [line(10 * scale, 3 * scale) for scale in (1, 1, 1, 1.2, 0.8)])
    assert calm.per_image_ms.high - calm.per_image_ms.low == pytest.approx(0, abs=1e-9)
    assert uneven.per_image_ms.high - uneven.per_image_ms.low > 0.5


@pytest.mark.parametrize(
    ("times", "linear"),
    [
        (line(10, 3), True),
        ([20, 16, 22, 34, 58, 106], False),  # batch 1 has slow kernels of its own
        ([3 * size**1.2 for size in SIZES], False),  # nothing is fixed
        ([7.0] * 6, False),  # nothing depends on the batch
    ],
)
def test_what_is_no_line_is_labelled(times, linear):
    assert fit(SIZES, [times]).linear is linear


def test_two_points_are_no_fit():
    assert fit((1, 2), [[3, 4]]) is None


def point(size, ms, p99=None, samples=400, fit=True):
    p99_ms = None if p99 is None else Estimate(value=p99[1], low=p99[0], high=p99[2])
    rate = size / ms * 1e3
    p50_ms = Estimate(value=ms, low=ms, high=ms)
    return SweepPoint(
        batch_size=size,
        p50_ms=p50_ms,
        p99_ms=p99_ms,
        throughput_per_s=rate,
        samples=samples,
        fit=fit,
    )


EIGHT, SIXTEEN = point(8, 12, (13, 14, 15)), point(16, 19.7, (20, 22, 24))


def test_the_budget_picks_the_batch_in_words():
    found = budget([EIGHT, SIXTEEN, point(32, 60)], 50, "time cap")
    assert (found.batch_size, found.throughput_per_s) == (16, pytest.approx(812.2, abs=0.1))
    assert found.sentence == "within 50 ms at p99: batch 16, 812 images/s"


def test_the_upper_bound_decides_and_a_doubt_is_told():
    found = budget([EIGHT, point(16, 30, (40, 45, 51))], 50, "time cap")
    assert found.batch_size == 8
    assert "batch 16 is not clearly within the limit (p99 45 ms [40, 51])" in found.sentence
    found = budget([EIGHT, point(16, 30, samples=20)], 50, "time cap")
    assert "batch 16 is not decided: p99 needs 368 calls, 20 fit into the time cap" in found.sentence


def test_disturbed_points_decide_no_budget():
    disturbed = point(16, 19.7, (20, 22, 24), fit=False)
    found = budget([EIGHT, disturbed], 50, "time cap")
    assert found.batch_size == 8
    assert found.sentence.endswith("; batch 16 is not decided: other work disturbed it")
    found = budget([disturbed], 50, "time cap")
    assert (found.batch_size, found.throughput_per_s) == (None, None)
    fast = point(4, 1, (1, 1, 1), fit=False)
    assert "gives more" not in budget([fast, EIGHT], 50, "time cap").sentence


def test_what_else_the_budget_says():
    found = budget([EIGHT, SIXTEEN], 50, "16 is the largest wanted")
    assert found.sentence.endswith("; no larger one was measured (16 is the largest wanted)")
    slow = budget([EIGHT, point(16, 40, (41, 42, 43)), point(32, 99)], 50, "time cap")
    assert slow.sentence.endswith("; batch 8 gives more: 667 images/s")
    none = budget([point(1, 60, (61, 62, 63))], 50, "time cap")
    assert none.batch_size is None
    assert none.sentence == (
        "no batch size is known to be within 50 ms at p99; batch 1 takes 62 ms [61, 63] at p99"
    )
