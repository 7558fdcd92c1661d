import numpy as np
import pytest

from optcli.errors import InputError
from optcli.measure.queueing.arrivals import Poisson
from optcli.measure.queueing.batching import Batching
from optcli.measure.queueing.curve import Curve
from optcli.measure.queueing.simulation import simulate


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("1:25ms,2:27ms,4:34ms,8:48ms", [25, 27, 30.5, 34, 37.5, 41, 44.5, 48]),
        (" 8:48ms , 1:25ms ", [25, 25 + 23 / 7, 25 + 46 / 7]),
        ("6ms+4ms*b", [10, 14, 18]),
        ("6ms + 500us * B", [6.5, 7, 7.5]),
        ("0ms+0.004s*b", [4, 8]),
        ("6ms+0ms*b", [6, 6]),
        ("12ms", [12]),
        ("1:.5s,2:1e3ms", [500, 1000]),
    ],
)
def test_texts(text, times):
    assert Curve.parse(text).times_ms(len(times)) == pytest.approx(times)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "'' is no point of a curve"),
        ("1:25", "'25' is no time"),
        ("1:25ms,,2:27ms", "'' is no point"),
        ("25ms,27ms", "'25ms' is no point"),
        ("0:25ms,1:27ms", "a batch size is 0, wanted a whole number of 1 or more"),
        ("-1:25ms", "'-1:25ms' is no point"),
        ("1.5:25ms", "'1.5:25ms' is no point"),
        ("1:25ms,1:26ms", "batch size 1 stands twice"),
        ("1:-25ms", "'-25ms' is no time"),
        ("1:nanms", "'nanms' is no time"),
        ("1:1e999ms", "the time of batch 1 is inf, wanted a number above 0"),
        ("1:0ms,2:1ms", "the time of batch 1 is 0.0, wanted a number above 0"),
        ("1:25min", "'25min' is no time"),
        ("6+4*b", "'6' is no time"),
        ("6ms-2ms*b", "'6ms-2ms*b' is no time"),
        ("0ms+0ms*b", "the curve is 0 ms for every batch"),
        ("1:50ms,8:25ms", "the curve falls: batch 1 takes 50 ms, batch 8 takes 25 ms"),
        ("1:50ms,2:49ms,4:48ms,8:47ms", "the curve falls: batch 1 takes 50 ms, batch 8 takes 47 ms"),
        ("x" * 10_000, "(10000 characters)"),
    ],
)
def test_texts_that_are_no_curve(text, says):
    with pytest.raises(InputError) as raised:
        Curve.parse(text)
    assert says in raised.value.message
    assert raised.value.place == "curve"
    assert raised.value.hint


@pytest.mark.parametrize(
    "points", [{}, {True: 5}, {1: float("nan")}, {1: "5"}, {1.0: 5}, {1: None}, {1: 10**5000}]
)
def test_points_that_are_no_curve(points):
    with pytest.raises(InputError):
        Curve.from_points(points)


def test_a_line_needs_no_points_and_is_never_extrapolated():
    line = Curve.from_line(6, 4)
    assert line.sizes == ()
    assert not line.is_extrapolated(1000)
    assert line.time_ms(1000) == 4006
    assert line.per_s(8) == pytest.approx(8000 / 38)
    for fixed, each in ((-1, 4), (6, -4), (float("inf"), 1), ("6", 1)):
        with pytest.raises(InputError):
            Curve.from_line(fixed, each)


def test_the_fit_is_least_squares_and_names_its_largest_residual():
    curve = Curve.from_points({1: 6.2, 4: 9.1, 16: 21.0, 64: 74.0})
    slope, fixed = np.polyfit([1, 4, 16, 64], [6.2, 9.1, 21.0, 74.0], 1)
    assert (curve.fixed_ms, curve.per_image_ms) == pytest.approx((fixed, slope))
    residuals = [abs(fixed + slope * size - time) / time for size, time in curve.points]
    assert curve.largest_residual == pytest.approx(max(residuals))
    assert curve.largest_within(30, curve.sizes) == 16
    assert curve.largest_within(5, curve.sizes) is None


def test_neither_part_of_the_line_is_negative():
    steep = Curve.from_points({1: 1, 2: 3, 4: 9})
    assert steep.fixed_ms == 0
    assert steep.per_image_ms == pytest.approx((1 + 6 + 36) / 21)
    flat = Curve.from_points({1: 5, 8: 5})
    assert (flat.fixed_ms, flat.per_image_ms) == pytest.approx((5, 0))


def test_what_lies_beyond_the_points_is_marked_and_never_falls():
    curve = Curve.from_points({4: 34, 8: 48, 16: 60})
    assert [s for s in range(1, 19) if curve.is_extrapolated(s)] == [1, 2, 3, 17, 18]
    assert [curve.is_extrapolated(size) for size in (3, 4, 16, 17)] == [True, False, False, True]
    times = curve.times_ms(40)
    assert times == sorted(times)
    assert times[39] - times[38] == pytest.approx(curve.per_image_ms)
    line_at_18 = curve.fixed_ms + 18 * curve.per_image_ms
    assert times[17] >= line_at_18
    # The last point lies above the line: so does what comes after it.
    convex = Curve.from_points({1: 10, 2: 11, 4: 20, 8: 60})
    assert convex.time_ms(9) == pytest.approx(60 + convex.per_image_ms)
    # The first lies below the line: what comes before it takes no longer.
    late = Curve.from_points({4: 10, 8: 40, 16: 41})
    assert late.time_ms(1) <= late.time_ms(4) == 10


def test_one_point_is_one_batch_size():
    curve = Curve.from_points({8: 48})
    assert curve.time_ms(8) == 48
    assert curve.fixed_ms is curve.per_image_ms is None
    assert curve.is_extrapolated(4)
    with pytest.raises(InputError, match="the curve has one point, batch 8; batch 4 is not known"):
        curve.time_ms(4)
    with pytest.raises(InputError, match="one point"):
        simulate(Poisson(10).draw(5, 0), curve, Batching(8))


def test_a_table_that_falls_within_noise_is_flattened():
    curve = Curve.from_points({1: 10, 2: 9.8, 4: 15})
    assert curve.points == ((1, 9.9), (2, 9.9), (4, 15))


@pytest.mark.slow
def test_a_simulation_draws_what_was_measured():
    random = np.random.default_rng(1)
    samples = {1: random.gamma(20, 0.5, 300), 8: 30 + random.gamma(20, 0.5, 200)}
    curve = Curve.from_samples(samples)
    assert dict(curve.points) == pytest.approx({size: each.mean() for size, each in samples.items()})
    run = simulate(Poisson(1).draw(50_000, 2), curve, Batching(1), seed=3, warm_up=0)
    alone = run.latencies_ms[np.append(True, np.diff(run.finished_ms) > 100)]
    assert alone.size > 40_000
    assert np.abs(alone[:, None] - np.sort(samples[1])).min(axis=1).max() < 1e-6
    for q in (0.5, 0.95, 0.99):
        assert np.quantile(alone, q) == pytest.approx(np.quantile(samples[1], q), rel=0.03)


def test_quantiles_between_and_beyond_measured_sizes():
    samples = {2: np.array([4.0, 6.0]), 6: np.array([10.0, 20.0])}
    table = Curve.from_samples(samples).quantiles_ms(8, levels=2)
    assert table[1].tolist() == [4, 6]
    assert table[3].tolist() == [7, 13]
    assert table[5].tolist() == [10, 20]
    curve = Curve.from_samples(samples)
    assert table.mean(axis=1) == pytest.approx(curve.times_ms(8))
    assert table[7] == pytest.approx(table[5] * curve.time_ms(8) / 15)
    assert Curve.from_line(1, 1).quantiles_ms(8) is None


def test_measured_times_that_fall_within_noise_keep_to_the_flattened_table():
    curve = Curve.from_samples({1: [10.0, 10.4], 2: [9.8, 10.0]})
    assert curve.quantiles_ms(2).mean(axis=1) == pytest.approx([10.05, 10.05])


@pytest.mark.parametrize("times", [[], [1.0, 0.0], [float("nan")], [-1.0], [float("inf")]])
def test_measured_times_that_are_none(times):
    with pytest.raises(InputError, match="batch 4 has no measured times"):
        Curve.from_samples({4: times, 8: [9.0]})


def test_no_measured_sizes():
    with pytest.raises(InputError, match="no points"):
        Curve.from_samples({})
