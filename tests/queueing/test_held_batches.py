"""Sealed batches behind an ingress that holds requests back."""

import heapq
from dataclasses import replace

import numpy as np
import pytest

from optcli.queueing import (
    Arrivals,
    Batching,
    Curve,
    Overhead,
    Poisson,
    Promise,
    highest_rate,
    simulate,
)
from optcli.queueing.durations import Durations
from optcli.queueing.event_loop import run

LINE = Curve.from_line(4, 1)
MANY = 10**6


def held(arrivals, batching, replica_of, call_ms):
    """What the event loop sends."""
    draw = Durations.of(LINE, batching.batch, 0.0, 0)
    return run(arrivals, batching, [0.0] * batching.workers, draw, replica_of, call_ms)


def finished(batches, count):
    """When each request was done [count]."""
    ends = np.full(count, np.nan)
    ends[batches.members] = np.repeat(batches.started_ms + batches.took_ms, batches.sizes)
    return ends


def test_a_case_by_hand():
    """B = 2, at most 3 at the replica, which takes 5 ms for one and 6 for two; a call adds 1 ms.

    Requests 0, 1 and 2 go one by one and are batches of their own: 0 to 5, 5 to 10, 10 to 15. 3 and 4
    wait until two have room, which is at 10: one call, 15 to 20 since two in a call save 1 ms. The last
    finds room at 15, beside those two.
    """
    arrivals = Arrivals([0.0, 0.1, 0.2, 0.3, 0.4, 10.5])
    batches = held(arrivals, Batching(2, semantics="sealed", most_sent=3), [0] * 6, 1.0)
    assert batches.members.tolist() == [0, 1, 2, 3, 4, 5]
    assert batches.sizes.tolist() == [1, 1, 1, 2, 1]
    assert finished(batches, 6).tolist() == [5.0, 10.0, 15.0, 20.0, 20.0, 25.0]
    assert batches.closed_ms.tolist() == [0.0, 0.1, 0.2, 10.0, 15.0]


def test_the_rows_of_a_call_fill_the_open_batch_first_and_an_old_timer_closes_nothing():
    """B = 2, wait 10 ms, two workers, at most 3: what is left of a full call opens the next batch."""
    arrivals = Arrivals([0.0, 1.0, 2.0, 3.0, 4.0])
    batching = Batching(2, 10.0, concurrency=2, semantics="sealed", most_sent=3)
    batches = held(arrivals, batching, [0] * 5, 0.0)
    # 0 and 1 close at 1 and end at 7; 2 is open; 3 and 4 go at 7: 3 joins 2, 4 waits until 17.
    assert batches.sizes.tolist() == [2, 2, 1]
    assert batches.closed_ms.tolist() == [1.0, 7.0, 17.0]
    assert finished(batches, 5).tolist() == [7.0, 7.0, 13.0, 13.0, 22.0]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_with_room_for_all_it_is_sealed_batching(seed):
    random = np.random.default_rng(seed)
    batch, wait_ms = int(random.integers(1, 7)), float(random.choice([0, 3, 12]))
    instances, concurrency = int(random.integers(1, 4)), int(random.integers(1, 3))
    arrivals = Arrivals(np.cumsum(random.exponential(3.0, 300)))
    common = {"batch": batch, "wait_ms": wait_ms, "instances": instances, "concurrency": concurrency}
    plain = Batching(**common, semantics="sealed")
    expected = simulate(arrivals, LINE, plain, seed=seed).finished_ms
    spread = np.random.default_rng([seed, 5]).integers(instances, size=300)
    goes = [0] * 300 if instances == 1 else spread.tolist()
    ample = replace(plain, most_sent=MANY)
    assert finished(held(arrivals, ample, goes, 2.0), 300) == pytest.approx(expected)
    # Nothing was held, so the simulation takes the short way, with the same result.
    found = simulate(arrivals, LINE, ample, Overhead(call_ms=2.0), seed=seed)
    assert found.finished_ms == pytest.approx(expected)


def simple(times, batch, most, time_ms, call_ms):
    """No wait and one worker: calls in a line, by a loop over what happens next."""
    ends, line, heap = {}, [], []
    waiting, there, free_ms, came = [], 0, 0.0, 0
    while len(ends) < len(times):
        if came < len(times) and (not heap or times[came] < heap[0][0]):
            now, came = times[came], came + 1
            waiting.append(came - 1)
        else:
            now, call = heapq.heappop(heap)
            there -= len(call)
            ends |= dict.fromkeys(call, now)
        while waiting and there + min(batch, len(waiting)) <= most:
            call, waiting = waiting[:batch], waiting[batch:]
            there += len(call)
            free_ms = max(free_ms, now) + time_ms(len(call)) - call_ms * (len(call) - 1)
            heapq.heappush(heap, (free_ms, call))
            line.append(len(call))
    return [ends[each] for each in range(len(times))], line


@pytest.mark.parametrize("seed", range(40))
def test_without_a_wait_calls_are_batches_that_stand_in_line(seed):
    random = np.random.default_rng(seed)
    batch = int(random.integers(2, 7))
    most = int(random.integers(batch, 3 * batch))
    arrivals = Arrivals(np.cumsum(random.exponential(2.0, 400)))
    batching = Batching(batch, semantics="sealed", most_sent=most)
    found = simulate(arrivals, LINE, batching, Overhead(call_ms=0.5), seed=seed, warm_up=0)
    ends, sizes = simple(arrivals.times_ms.tolist(), batch, most, LINE.time_ms, 0.5)
    assert found.finished_ms == pytest.approx(ends)
    assert found.mean_batch == pytest.approx(np.mean(sizes))
    assert sum(sizes) == 400
    stages = found.stages
    parts = (stages.wait_ms, stages.queue_ms, stages.compute_ms, stages.overhead_ms)
    assert min(parts) >= -1e-9
    assert sum(parts) == pytest.approx(found.mean_ms)


@pytest.mark.parametrize("wait_ms", [0.0, 7.0])
def test_no_more_are_at_the_replicas_than_may_be(wait_ms):
    random = np.random.default_rng(3)
    times = np.cumsum(random.exponential(1.2, 2000))
    batching = Batching(4, wait_ms, 2, semantics="sealed", most_sent=16)
    batches = held(Arrivals(times), batching, random.integers(2, size=2000).tolist(), 0.0)
    assert sorted(batches.members.tolist()) == list(range(2000))
    # What has closed has been sent; without a wait a batch closes as it comes.
    sent = np.repeat(batches.closed_ms, batches.sizes)
    ends = finished(batches, 2000)[batches.members]
    there = [np.count_nonzero((sent <= now) & (ends > now)) for now in np.unique(sent)]
    assert 12 < max(there) <= 16
    assert batches.sizes.max() == 4


@pytest.mark.slow
def test_what_would_grow_without_bound_is_carried_by_full_calls_and_takes_longer():
    """E4 of the reference at a wait that is too short: 20 ms where 27 are wanted."""
    curve, process = Curve.from_line(20.91, 3.357), Poisson(120)
    arrivals = process.draw(20_000, 1)
    sealed = Batching(8, 20.0, semantics="sealed")
    assert simulate(arrivals, curve, sealed).grows
    held = simulate(arrivals, curve, replace(sealed, most_sent=16))
    enough = simulate(arrivals, curve, replace(sealed, wait_ms=50.0, most_sent=16))
    assert not held.grows
    assert held.p95_ms > 1.5 * enough.p95_ms
    promise = Promise({0.95: 300.0})
    given = {"runs": 1, "requests": 8_000}
    assert highest_rate(process, curve, sealed, promise, **given) < 120
    assert 120 < highest_rate(process, curve, replace(sealed, most_sent=16), promise, **given) < 167
