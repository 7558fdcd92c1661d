"""The simulation against a calendar of events, request by request."""

import numpy as np
import pytest
from event_by_event import OldestAge, Sealed

from optcli.measure.queueing.arrivals import Arrivals
from optcli.measure.queueing.batching import Batching, Overhead
from optcli.measure.queueing.curve import Curve
from optcli.measure.queueing.simulation import Durations, simulate

MICROSECOND = 1e-3


def a_case(seed):
    """Random requests, curve, overhead and most of a configuration."""
    random = np.random.default_rng(seed)
    count = int(random.integers(1, 80))
    gap = float(random.choice([0.5, 3, 15]))
    times = np.cumsum(random.exponential(gap, count))
    if seed % 4 == 0:  # bursts: most requests come in clumps
        times = np.sort(times[random.integers(0, count, count)] + random.uniform(0, 0.5, count))
    kind = seed % 3
    largest = int(random.integers(1, 9))
    if kind == 0:
        curve = Curve.from_line(float(random.uniform(0, 9)), float(random.uniform(0.1, 4)))
    elif kind == 1:
        ends = np.cumsum(random.uniform(1, 9, 3))
        curve = Curve.from_points(dict(zip((1, 3, 8), ends.tolist(), strict=True)))
    else:
        rows = random.gamma(9, 0.5, 40), 5 + random.gamma(20, 0.5, 30)
        curve = Curve.from_samples(dict(zip((2, 6), rows, strict=True)))
    common = {
        "batch": largest,
        "wait_ms": float(random.choice([0, random.uniform(0, 30)])),
        "instances": int(random.integers(1, 4)),
        "concurrency": int(random.integers(1, 3)),
    }
    return Arrivals(times), curve, common, Overhead(*random.uniform(0, 5, 2))


def taking(curve, batching, seed):
    """Milliseconds of the n-th batch, from the same draws as the simulation's."""
    draw = Durations.of(curve, batching.batch, seed)
    levels = draw.levels(1000)
    return lambda size, number: draw.table[size - 1, levels[number]]


def same(simulation, finished, arrivals, overhead):
    expected = np.full(arrivals.count, np.nan)
    for request, time in finished.items():
        expected[request] = time + overhead.total_ms
    np.testing.assert_allclose(simulation.finished_ms, expected, rtol=0, atol=MICROSECOND)
    assert len(finished) == arrivals.count


@pytest.mark.parametrize("seed", range(200))
def test_oldest_age_is_what_happens_event_by_event(seed):
    arrivals, curve, common, overhead = a_case(seed)
    batching = Batching(**common)
    server = OldestAge(batching, taking(curve, batching, seed))
    finished = server.go(arrivals.times_ms.tolist(), batching.workers)
    simulation = simulate(arrivals, curve, batching, overhead, seed=seed, warm_up=0)
    same(simulation, finished, arrivals, overhead)


@pytest.mark.parametrize("seed", range(200))
def test_sealed_batches_are_what_happens_event_by_event(seed):
    arrivals, curve, common, overhead = a_case(seed)
    batching = Batching(**common, semantics="sealed")
    # The same draws as the simulation's.
    random = np.random.default_rng([seed, 5])
    goes_to = random.integers(batching.instances, size=arrivals.count).tolist()
    finished = {}
    for replica in range(batching.instances):
        mine = [request for request, where in enumerate(goes_to) if where == replica]
        server = Sealed(batching, taking(curve, batching, seed + replica))
        times = arrivals.times_ms[list(mine)].tolist()
        parts = server.go(times, batching.concurrency)
        finished |= {mine[request]: time for request, time in parts.items()}
    simulation = simulate(arrivals, curve, batching, overhead, seed=seed, warm_up=0)
    same(simulation, finished, arrivals, overhead)


@pytest.mark.parametrize(("processes", "expected"), [(1, [12, 16, 18, 12]), (2, [12, 12, 14, 12])])
def test_processes_of_an_ingress_share_the_requests(processes, expected):
    # Each takes 4 of a request; behind them are instances enough, which take 5 of each.
    overhead = Overhead(1, 2, ingress_ms=4, ingresses=processes)
    arrivals = Arrivals([0.0, 0, 2, 40])
    run = simulate(arrivals, Curve.parse("5ms"), Batching(1, instances=4), overhead, warm_up=0)
    assert run.latencies_ms.tolist() == expected
