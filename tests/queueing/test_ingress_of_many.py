"""An ingress that passes the requests of several deployments, beside a simulation event by event."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import deque

import numpy as np
import pytest

from optcli.errors import InputError
from optcli.queueing import (
    Arrivals,
    Batching,
    Bursts,
    Curve,
    Overhead,
    Part,
    Poisson,
    Promise,
    formulas,
    highest_rate,
    simulate,
)
from optcli.queueing.arrivals import share_of_ingress, without_others

LINE = Curve.parse("6ms+4ms*b")
# No multiple of the work at the ingress: there are no ties.
BATCHING = Batching(8, 19.3, semantics="sealed")


def latencies_ms(own, others, ingress_ms, batch, wait_ms, fixed_ms, image_ms):
    """What `own` requests take: one ingress for all, then sealed batches of the own, and one worker."""
    order = itertools.count()
    events = [(time, next(order), "comes", number) for number, time in enumerate(own)]
    events += [(time, next(order), "comes", None) for time in others]
    heapq.heapify(events)
    at_ingress, gathering, closed = deque(), [], deque()
    passing = computing = False
    batches = 0
    answered = [0.0] * len(own)

    def later(now, after_ms, what, who):
        heapq.heappush(events, (now + after_ms, next(order), what, who))

    while events:
        now, _, what, who = heapq.heappop(events)
        if what == "comes":
            at_ingress.append(who)
        elif what == "passed":
            passing = False
            if who is not None:
                gathering.append(who)
                if len(gathering) == 1:
                    later(now, wait_ms, "waited", batches)
                if len(gathering) == batch:
                    closed.append(gathering)
                    gathering, batches = [], batches + 1
        elif what == "waited" and who == batches and gathering:
            closed.append(gathering)
            gathering, batches = [], batches + 1
        elif what == "computed":
            computing = False
            for number in who:
                answered[number] = now - own[number]
        if at_ingress and not passing:
            passing = True
            later(now, ingress_ms, "passed", at_ingress.popleft())
        if closed and not computing:
            computing = True
            together = closed.popleft()
            later(now, fixed_ms + image_ms * len(together), "computed", together)
    return answered


def poisson(rate_per_s, count, seed):
    draw = random.Random(seed)
    return list(itertools.accumulate(draw.expovariate(rate_per_s / 1000) for _ in range(count)))


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_others_delay_a_request_at_the_ingress_event_by_event(seed):
    own, others = poisson(60, 600, seed), poisson(340, 3400, 100 + seed)
    wanted = latencies_ms(own, others, 2.0, 8, 19.3, 6.0, 4.0)
    run = simulate(
        Arrivals(np.array(own), beside_ms=np.array(others)),
        LINE,
        BATCHING,
        Overhead(ingress_ms=2.0),
        warm_up=0,
    )
    assert run.latencies_ms == pytest.approx(np.array(wanted), abs=1e-6)
    assert not run.grows


@pytest.mark.slow
def test_a_part_is_predicted_as_events_of_other_requests_say():
    # 400 a second pass an ingress that works 2.2 ms for each, and a quarter of them is followed.
    process = Part(Poisson(400), 0.25, Poisson(100))
    overhead = Overhead(ingress_ms=2.2)
    run = simulate(process.draw(40_000, 5), LINE, BATCHING, overhead)
    alone = simulate(process.alone.draw(40_000, 5), LINE, BATCHING, overhead)
    own, others = poisson(100, 20_000, 11), poisson(300, 60_000, 12)
    by_events = latencies_ms(own, others, 2.2, 8, 19.3, 6.0, 4.0)
    for q in (0.5, 0.95, 0.99):
        assert run.percentile_ms(q) == pytest.approx(float(np.quantile(by_events, q)), rel=0.06)
    assert run.stages.overhead_ms > 2 * alone.stages.overhead_ms


@pytest.mark.slow
@pytest.mark.parametrize(
    ("whole", "alone"),
    [
        (Poisson(400), Poisson(100)),
        (Bursts(200, 1400, 1800, 200), Bursts(50, 350, 1800, 200)),
    ],
)
def test_a_part_has_its_share_and_the_others_beside_it(whole, alone):
    part = Part(whole, 0.25, alone)
    assert part.rate_per_s == pytest.approx(alone.rate_per_s)
    assert part.scaled(2).rate_per_s == pytest.approx(2 * part.rate_per_s)
    assert (share_of_ingress(part), share_of_ingress(whole)) == (0.25, 1.0)
    assert (without_others(part), without_others(whole)) == (alone, whole)
    drawn = part.draw(20_000, 3)
    assert drawn.count == pytest.approx(20_000, rel=0.03)
    every = np.sort(np.concatenate([drawn.times_ms, drawn.beside_ms]))
    assert every == pytest.approx(whole.draw(80_000, 3).times_ms)


@pytest.mark.slow
def test_a_small_part_is_drawn_with_bounds_and_always_has_a_request():
    assert Part(Poisson(1000), 0.001, Poisson(1)).draw(100_000, 0).count < 10_000
    assert Part(Poisson(1000), 1e-4, Poisson(0.1)).draw(1, 0).count >= 1
    for share in (0.0, 1.5):
        with pytest.raises(InputError, match="the share of the requests"):
            Part(Poisson(10), share, Poisson(10))


@pytest.mark.slow
def test_the_highest_rate_of_a_part_is_its_share_of_the_ingress():
    quick, promise = Curve.parse("0.1ms+0.01ms*b"), Promise({0.95: 40})
    overhead = Overhead(ingress_ms=2)
    whole = highest_rate(Poisson(100), quick, Batching(1), promise, overhead, requests=20_000)
    part = Part(Poisson(100), 0.25, Poisson(25))
    assert 400 < whole < 500
    most = highest_rate(part, quick, Batching(1), promise, overhead, requests=20_000)
    assert most == pytest.approx(whole / 4, rel=0.05)


def test_a_queue_at_the_ingress_that_grows_is_seen_by_a_part_of_the_requests():
    part = Part(Poisson(600), 0.1, Poisson(60))
    assert simulate(part.draw(6_000, 0), LINE, BATCHING, Overhead(ingress_ms=2)).grows
    assert not simulate(part.draw(6_000, 0), LINE, BATCHING, Overhead(ingress_ms=1)).grows


def test_the_ingress_bounds_capacity_load_and_caps():
    # One worker makes 8 / 38 ms = 210.5 a second, ten of them 2105; the ingress passes 500.
    assert formulas.capacity_per_s(LINE, 8, 1, ingress_ms=2) == pytest.approx(1000 * 8 / 38)
    assert formulas.capacity_per_s(LINE, 8, 10, ingress_ms=2) == 500
    assert formulas.load(400, LINE, 8, 10, ingress_ms=2) == pytest.approx(0.8)
    # 120 - 38 ms are left to wait: 41 pass the ingress meanwhile, 30 if it refuses others, too.
    assert formulas.ingress_cap(120, LINE, 8, 2) == 30
    assert formulas.ingress_cap(30, LINE, 8, 2) == 0
    assert formulas.queue_cap_drop_oldest(120, LINE, 8, 10, ingress_ms=2) == 41
    assert formulas.queue_cap_reject_newest(120, LINE, 8, 10) == 160
    assert formulas.queue_cap_reject_newest(120, LINE, 8, 10, ingress_ms=2) == 30
    assert formulas.queue_cap_reject_newest(120, LINE, 8, 1, ingress_ms=2) == 16
    with pytest.raises(InputError, match="the work at the ingress"):
        formulas.ingress_cap(120, LINE, 8, 0)
