"""The least wait of sealed batches, where the curve is no line, and with calls side by side."""

import math

import pytest

from optcli.measure.queueing.arrivals import Constant, Poisson
from optcli.measure.queueing.batching import Batching
from optcli.measure.queueing.choice import choose
from optcli.measure.queueing.curve import Curve
from optcli.measure.queueing.demand import Demand, Promise, sealed_least_ms
from optcli.measure.queueing.formulas import fewest_wait_sealed_ms
from optcli.measure.queueing.simulation import replicate

E1 = Curve.parse("6ms+4ms*b")
# Padded to four: a batch of one takes as long as one of four.
PADDED = Curve.parse("1:10ms,2:10ms,4:10ms,8:40ms")


def grows(rate, curve, wait_ms, batch=16, *, instances=1, concurrency=1):
    batching = Batching(batch, wait_ms, instances, concurrency, semantics="sealed")
    return replicate(Poisson(rate), curve, batching, runs=2, requests=150_000, seed=1).grows


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "curve", "given"),
    [
        (200, E1, {}),
        (150, PADDED, {"batch": 4}),
        (350, E1, {"concurrency": 2}),
        (350, E1, {"instances": 2}),
        (120, Curve.parse("1:25ms,2:27ms,4:34ms,8:48ms,16:80ms"), {}),
    ],
)
def test_the_queue_grows_under_the_least_wait_and_not_well_above_it(rate, curve, given):
    least = fewest_wait_sealed_ms(
        rate,
        curve,
        given.get("instances", 1),
        batch=given.get("batch", 16),
        concurrency=given.get("concurrency", 1),
    )
    assert 0 < least < math.inf
    assert grows(rate, curve, 0.8 * least, **given)
    assert not grows(rate, curve, 1.4 * least, **given)


def test_calls_side_by_side_need_no_longer_wait_than_their_rate_asks_for():
    # b* = 0.35 * 6 / (2 - 0.35 * 4) = 3.5, which gather in 2.5 / 0.35 ms.
    assert fewest_wait_sealed_ms(350, E1, concurrency=2) == pytest.approx(2.5 / 0.35)
    demand = Demand(Poisson(350), Promise({0.95: 200}), semantics="sealed", concurrency=2, instances=1)
    offer = Batching(16, 0, 1, 2, semantics="sealed")
    assert sealed_least_ms(E1, demand, offer) == pytest.approx(2.5 / 0.35, abs=1e-5)


@pytest.mark.parametrize("wait_ms", [0, 45, 500])
def test_a_batch_too_small_for_the_rate_is_helped_by_no_wait(wait_ms):
    assert fewest_wait_sealed_ms(220, E1, batch=8) == math.inf
    assert fewest_wait_sealed_ms(220, E1, batch=16) == pytest.approx(45.45, abs=0.01)
    assert grows(220, E1, wait_ms, batch=8)


def test_the_first_batch_that_carries_the_rate_counts():
    # Batches of four carry 400 a second, of eight 200: nothing larger than four may be needed.
    assert fewest_wait_sealed_ms(300, PADDED) == pytest.approx((3 - 1) / 0.3)
    assert fewest_wait_sealed_ms(100, PADDED) == 0
    assert fewest_wait_sealed_ms(401, PADDED) == math.inf


@pytest.mark.slow
@pytest.mark.parametrize("process", [Poisson(200), Constant(200)])
def test_what_lies_just_under_the_least_wait_is_refused_however_long_the_promise(process):
    given = {"semantics": "sealed", "instances": 1, "batch": 16}
    promise = Promise({0.5: 5000})
    assert choose(E1, Demand(process, promise, **given, waits_ms=(24.9,))).best is None
    assert choose(E1, Demand(process, promise, **given, waits_ms=(27,))).best is not None
