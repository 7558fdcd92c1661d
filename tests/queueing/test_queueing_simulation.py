import math

import pytest

from optcli.errors import InputError
from optcli.measure.queueing.arrivals import Arrivals, Poisson
from optcli.measure.queueing.batching import Batching, Overhead
from optcli.measure.queueing.curve import Curve
from optcli.measure.queueing.demand import Promise, highest_rate
from optcli.measure.queueing.simulation import replicate, seeds_of, simulate

LINE = Curve.from_line(4, 1)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"batch": 0}, "the largest batch is 0"),
        ({"batch": 2.0}, "the largest batch is 2.0, wanted a whole number"),
        ({"batch": True}, "the largest batch is True"),
        ({"batch": 10**6}, "wanted a whole number from 1 to 65536"),
        ({"wait_ms": -1}, "the longest wait is -1"),
        ({"wait_ms": math.inf}, "the longest wait is inf"),
        ({"instances": 0}, "the number of instances is 0"),
        ({"concurrency": 0}, "the concurrency is 0"),
    ],
)
def test_configurations_that_make_no_sense(change, says):
    with pytest.raises(InputError) as raised:
        Batching(**{"batch": 8, **change})
    assert says in raised.value.message
    assert raised.value.hint


@pytest.mark.parametrize(
    "make",
    [
        lambda: Overhead(-1),
        lambda: Overhead(after_ms=math.nan),
        lambda: Overhead(ingress_ms=-1),
        lambda: Overhead(ingresses=0),
        lambda: simulate(Arrivals([1]), LINE, Batching(1), warm_up=1.5),
        lambda: replicate(Poisson(1), LINE, Batching(1), runs=0),
        lambda: replicate(Poisson(1), LINE, Batching(1), requests=0),
        lambda: replicate(Poisson(1), LINE, Batching(1), seed=-1),
        lambda: simulate(Arrivals([1, 2]), LINE, Batching(1)).percentile_ms(1.5),
    ],
)
def test_what_cannot_be_simulated(make):
    with pytest.raises(InputError) as raised:
        make()
    assert raised.value.hint


def test_a_case_by_hand():
    # t(1) = 5, t(2) = 6, t(3) = 7; batches of 3, wait 4.
    arrivals = Arrivals([0.0, 1, 10, 11, 12, 13])
    run = simulate(arrivals, LINE, Batching(3, 4), warm_up=0)
    # 0 and 1 go at 4 and end at 10; 10 to 12 go when the third is there, end at 19; 13 goes at 19.
    assert run.finished_ms.tolist() == [10, 10, 19, 19, 19, 24]
    assert run.latencies_ms.tolist() == [10, 9, 9, 8, 7, 11]
    assert (run.p50_ms, run.p95_ms, run.percentile_ms(1.0)) == (9, 11, 11)
    assert run.mean_batch == 2
    assert run.busy == pytest.approx((6 + 1) / 13)


def test_a_sealed_case_by_hand():
    arrivals = Arrivals([0.0, 1, 10, 11, 12, 13])
    run = simulate(arrivals, LINE, Batching(3, 4, semantics="sealed"), warm_up=0)
    # The batch of 13 is closed at 17 and started when the worker is free, at 19.
    assert run.finished_ms.tolist() == [10, 10, 19, 19, 19, 24]


def test_overhead_adds_to_the_latency():
    run = simulate(Arrivals([0.0, 1]), LINE, Batching(1), Overhead(3, 7), warm_up=0)
    assert run.latencies_ms.tolist() == [15, 19]


def test_requests_pass_the_ingress_one_by_one():
    # The ingress takes 4 each: they leave it at 4, 8 and 24; the model takes 5.
    run = simulate(Arrivals([0.0, 1, 20]), LINE, Batching(1), Overhead(1, 2, ingress_ms=4), warm_up=0)
    assert run.latencies_ms.tolist() == [12, 16, 12]
    assert run.busy == pytest.approx(10 / 20)


@pytest.mark.slow
def test_the_ingress_bounds_the_rate():
    quick = Curve.from_line(0.001, 0.001)
    overhead = Overhead(ingress_ms=4)
    calm = replicate(Poisson(150), quick, Batching(1), overhead, requests=40_000)
    assert calm.mean_ms.value == pytest.approx(4 + 0.6 * 4 / (2 * 0.4), rel=0.05)  # M/D/1
    assert not calm.grows
    assert replicate(Poisson(300), quick, Batching(1), overhead, requests=40_000).grows
    varied = Overhead(ingress_ms=4, ingress_cv2=1)
    calm = replicate(Poisson(150), quick, Batching(1), varied, requests=40_000)
    assert calm.mean_ms.value == pytest.approx(4 / 0.4, rel=0.08)  # M/M/1
    promise = Promise({0.95: 30})
    most = highest_rate(Poisson(100), quick, Batching(1), promise, overhead, requests=40_000)
    assert 180 < most < 220
    assert highest_rate(Poisson(100), quick, Batching(1), promise, requests=40_000) > 100_000


@pytest.mark.parametrize("samples", [False, True])
@pytest.mark.parametrize(
    "batching",
    [
        Batching(8, 5, 2),
        Batching(1),
        Batching(8, 5, 3, semantics="sealed"),
    ],
)
def test_the_same_seed_gives_the_same_result_and_another_another(batching, samples):
    curve = Curve.from_samples({1: [4, 5, 6], 8: [11, 12, 14]}) if samples else LINE
    first, again, other = (
        replicate(Poisson(300), curve, batching, runs=2, requests=5000, seed=seed) for seed in (3, 3, 4)
    )
    assert first == again
    assert first.mean_ms != other.mean_ms


def test_seeds_of_neighbours_have_nothing_in_common():
    seeds = [each for seed in range(50) for each in seeds_of(seed, 20)]
    assert len(set(seeds)) == len(seeds)


def test_what_several_runs_say():
    run = replicate(Poisson(500), LINE, Batching(16, 10), runs=5, requests=4000)
    assert run.p95_ms.low < run.p95_ms.value < run.p95_ms.high
    assert run.requests == 4000
    assert replicate(Poisson(500), LINE, Batching(16, 10), runs=1, requests=400).p95_ms.low is None


@pytest.mark.slow
def test_an_interval_covers_what_a_long_run_finds():
    process, batching = Poisson(500), Batching(16, 10)
    truth = replicate(process, LINE, batching, runs=4, requests=200_000, seed=99).p95_ms.value
    runs = [replicate(process, LINE, batching, requests=5000, seed=seed).p95_ms for seed in range(40)]
    inside = sum(run.low <= truth <= run.high for run in runs)
    assert inside >= 34  # 38 of 40 are to be expected; the seeds are fixed


def test_one_request_alone():
    alone = simulate(Arrivals([3.0]), LINE, Batching(8))
    assert (alone.p50_ms, alone.busy) == (5, 0)


def test_a_queue_grows_where_the_load_is_one_or_more():
    for rate, grows in ((195, False), (205, True)):
        assert replicate(Poisson(rate), LINE, Batching(1), requests=50_000).grows == grows


@pytest.mark.slow
def test_the_highest_rate_where_slow_requests_break_the_promise_first():
    # Up to 1 request in 50 ms all wait 30 ms for a batch that never fills.
    batching, promise = Batching(2, 30), Promise({0.95: 30})
    slow = simulate(Poisson(5).draw(5000, 1), LINE, batching)
    assert not promise.kept_by(slow)
    rate = highest_rate(Poisson(5), LINE, batching, promise, requests=20_000)
    assert 100 < rate < 333
    there = simulate(Poisson(rate).draw(100_000, 9), LINE, batching)
    assert there.p95_ms == pytest.approx(30, rel=0.1)


@pytest.mark.slow
def test_no_rate_keeps_a_promise_below_the_fastest_batch():
    assert highest_rate(Poisson(5), LINE, Batching(1), Promise({0.5: 4.9}), requests=5000) == 0


@pytest.mark.parametrize(
    "limits", [{}, {0: 5}, {1: 5}, {95: 5}, {0.95: 0}, {0.95: -1}, {0.95: math.nan}]
)
def test_promises_that_make_no_sense(limits):
    with pytest.raises(InputError):
        Promise(limits)


def test_a_promise_is_broken_by_a_queue_that_grows():
    growing = simulate(Poisson(1000).draw(20_000, 1), LINE, Batching(16, 10))
    assert not Promise({0.95: 1e9}).kept_by(growing)
