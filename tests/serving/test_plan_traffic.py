"""Traffic of a plan: caches, rates that instances carry, and what the queue's bounds drop."""

from __future__ import annotations

import numpy as np
import pytest

import optcli
from optcli.errors import InputError
from optcli.measure.queueing.arrivals import Bursts, Constant, Gamma, Poisson
from optcli.serving.planning.configuring import part_of

pytestmark = pytest.mark.usefixtures("hurried_plans")

AFFINE = {"curve": "6ms+4ms*b", "slo": {"p95_ms": 120}}


@pytest.mark.parametrize("process", [Gamma(300, 4), Constant(300)], ids=repr)
def test_what_misses_a_cache_is_what_chance_leaves_of_every_request(process):
    misses = part_of(process, 0.25)
    assert misses.rate_per_s == pytest.approx(process.rate_per_s / 4, rel=0.03)
    gaps = np.diff(misses.draw(12_000, 5).times_ms)
    every = process.draw(48_000, 9).times_ms
    kept = np.diff(every[np.random.default_rng(3).random(every.size) < 0.25])
    assert gaps.mean() == pytest.approx(kept.mean(), rel=0.05)
    assert gaps.std() == pytest.approx(kept.std(), rel=0.1)
    assert np.quantile(gaps, [0.5, 0.9]) == pytest.approx(np.quantile(kept, [0.5, 0.9]), rel=0.15)


def test_fewer_independent_requests_are_independent_in_bursts_as_well():
    assert part_of(Poisson(400), 0.75) == Poisson(300)
    assert part_of(Bursts(100, 900, 1800, 200), 0.5) == Bursts(50, 450, 1800, 200)


@pytest.mark.slow
@pytest.mark.parametrize("curve", ["6ms+4ms*b", "1:10ms,2:14ms,4:22ms,8:38ms,16:70ms"])
def test_without_a_rate_the_answer_is_the_largest_that_instances_carry(curve):
    plan = optcli.plan(curve=curve, slo={"p95_ms": 120}, instances=2)
    assert plan.outcome == "kept"
    # 0.7 of two instances with batches of 16.
    assert plan.rate_per_s == pytest.approx(0.7 * 2 * 228.6, rel=0.01)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.usefixtures("exact_plans")
def test_without_a_rate_the_answer_keeps_the_promise_where_the_load_alone_would_not():
    plan = optcli.plan(curve="40ms", slo={"p95_ms": 60}, instances=1)
    assert plan.outcome == "kept"
    assert plan.rate_per_s < 0.7 * 25
    assert plan.recommended.p95_ms == pytest.approx(60, rel=0.1)


@pytest.mark.slow
def test_arrivals_of_no_known_kind_are_said_where_no_rate_needs_them_too():
    for settings in ({"curve": "6ms+4ms*b", "slo": {"p95_ms": 100}}, {"freshness_s": 60}):
        with pytest.raises(InputError, match="'trace:FILE' is no kind of arrivals"):
            optcli.plan(**settings, arrivals="trace:FILE")


def test_the_rate_that_instances_carry_is_that_behind_the_cache():
    plan = optcli.plan(curve="40ms", slo={"p95_ms": 200}, instances=2, cache_hit_rate=0.5)
    assert plan.planned_rate_per_s == pytest.approx(35)
    assert plan.rate_per_s == pytest.approx(70)


@pytest.mark.slow
@pytest.mark.usefixtures("exact_plans")
def test_what_the_queue_drops_stays_within_the_error_budget():
    plan = optcli.plan(**AFFINE, rate_per_s=200, instances=1)
    one = plan.recommended
    # A p95 on the limit leaves nearly 5 of 100 requests late, which the formulas' cap of 11 would drop.
    assert one.queue_cap >= one.batch
    assert one.max_in_flight == one.queue_cap + one.batch
    wide = optcli.plan(curve="4ms+1ms*b", rate_per_s=500, slo={"p99_ms": 50}, headroom=0).recommended
    assert wide.timeout_ms == 30
    assert wide.queue_cap >= 16


@pytest.mark.slow
def test_a_queue_is_no_shorter_than_a_batch():
    plan = optcli.plan(curve="6ms+4ms*b", rate_per_s=20, slo={"p95_ms": 40}, batch=8, instances=1)
    assert plan.recommended.queue_cap >= 8
