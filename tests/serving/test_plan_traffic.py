"""Traffic of a plan: caches, traces, rates that instances carry, and what the queue's bounds drop."""

from __future__ import annotations

import numpy as np
import pytest

import optcli
from optcli.errors import RecipeError
from optcli.measure.queueing import Bursts, Constant, Gamma, Poisson, Trace
from optcli.serving.planning import priorities
from optcli.serving.planning.traffic import part_of

pytestmark = pytest.mark.usefixtures("hurried_plans")

AFFINE = {"curve": "6ms+4ms*b", "slo": {"p95_ms": 120}}


@pytest.mark.parametrize(
    "process", [Gamma(300, 4), Constant(300), Trace(np.arange(50_000) * 3.0)], ids=repr
)
def test_what_misses_a_cache_is_what_chance_leaves_of_every_request(process):
    misses = part_of(process, 0.25, 1)
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


def test_no_cache_answers_frames_of_cameras():
    cameras = {"count": 2, "frames_per_s": 10}
    with pytest.raises(RecipeError, match="no frame of a camera comes again"):
        optcli.plan(**AFFINE, cameras=cameras, cache_hit_rate=0.5)


@pytest.mark.long
def test_bursts_behind_a_cache_are_simulated_in_as_many_requests():
    given = {"curve": "4ms+1ms*b", "rate_per_s": 1000, "slo": {"p99_ms": 50}}
    given["arrivals"] = "bursts:2800,18s,2s"
    plan = optcli.plan(**given, cache_hit_rate=0.5)
    assert "few-bursts" in {each.kind for each in plan.notes}


def trace_of(folder, times_ms):
    path = folder / "trace.csv"
    path.write_text("\n".join(f"{time / 1000:.6f}" for time in times_ms))
    return f"trace:{path}"


@pytest.mark.long
def test_the_worst_moments_of_a_long_trace_count_wherever_they_lie(tmp_path):
    random = np.random.default_rng(1)
    calm, burst = random.exponential(10, 100_000), random.exponential(1.5, 12_000)
    times = np.cumsum(np.concatenate([calm, burst, calm[:50_000]]))
    plan = optcli.plan(
        curve="6ms+4ms*b", slo={"p95_ms": 120}, arrivals=trace_of(tmp_path, times), headroom=0
    )
    assert plan.outcome == "kept"
    # The burst is 7 of 100 requests at 667 a second, which one instance does not carry.
    assert plan.recommended.instances >= 3


@pytest.mark.slow
def test_a_short_trace_says_that_it_is_replayed(tmp_path):
    plan = optcli.plan(**AFFINE, arrivals=trace_of(tmp_path, np.arange(200) * 20.0))
    assert "short-trace" in {each.kind for each in plan.notes}


@pytest.mark.slow
@pytest.mark.parametrize("curve", ["6ms+4ms*b", "1:10ms,2:14ms,4:22ms,8:38ms,16:70ms"])
def test_without_a_rate_the_answer_is_the_largest_that_instances_carry(curve):
    plan = optcli.plan(curve=curve, slo={"p95_ms": 120}, instances=2)
    assert plan.outcome == "kept"
    # 0.7 of two instances with batches of 16.
    assert plan.rate_per_s == pytest.approx(0.7 * 2 * 228.6, rel=0.01)


@pytest.mark.slow
@pytest.mark.usefixtures("exact_plans")
def test_without_a_rate_the_answer_keeps_the_promise_where_the_load_alone_would_not():
    plan = optcli.plan(curve="40ms", slo={"p95_ms": 60}, instances=1)
    assert plan.outcome == "kept"
    assert plan.rate_per_s < 0.7 * 25
    assert plan.recommended.p95_ms == pytest.approx(60, rel=0.1)


@pytest.mark.slow
def test_the_rate_that_instances_carry_is_that_of_the_peak_behind_the_cache():
    plan = optcli.plan(
        curve="40ms", slo={"p95_ms": 200}, instances=2, peak_factor=2, cache_hit_rate=0.5
    )
    assert plan.planned_rate_per_s == pytest.approx(35)
    assert plan.rate_per_s == pytest.approx(35)


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


@pytest.mark.slow
def test_overhead_in_the_worker_shortens_the_queue():
    beside = {"after_ms": 10}
    given = {"curve": "1:25ms,2:27ms,4:34ms,8:48ms", "rate_per_s": 60, "slo": {"p99_ms": 400}}
    given |= {"instances": 1, "batch": 8}
    outside = optcli.plan(**given, overhead=beside).recommended
    inside = optcli.plan(**given, overhead={**beside, "occupies_worker": True}).recommended
    assert outside.queue_cap == 8 * (390 // 48 - 1)
    assert inside.queue_cap == 8 * (400 // 58 - 1)
    assert (outside.longest_wait_ms, inside.longest_wait_ms) == (400 - 10 - 96, 400 - 2 * 58)


@pytest.mark.slow
def test_energy_is_of_the_mean_rate_and_machines_are_of_the_peak():
    given = {"curve": "12ms", "rate_per_s": 100, "slo": {"p95_ms": 100}, "watts": 100, "idle_watts": 0}
    peak = optcli.plan(**given, peak_factor=4).recommended
    # Workers compute 12 ms for each request, however many there are.
    assert peak.energy_wh_per_1000 == pytest.approx(100 * 12 / 3600, rel=0.02)
    assert optcli.plan(**given).recommended.energy_wh_per_1000 == pytest.approx(
        100 * 12 / 3600, rel=0.02
    )


@pytest.mark.slow
def test_instances_without_headroom_are_those_of_the_plan_without_it():
    given = {"curve": "4ms+1ms*b", "rate_per_s": 500, "slo": {"p99_ms": 50}}
    plan = optcli.plan(**given)
    bare = optcli.plan(**given, headroom=0)
    assert (plan.recommended.instances, bare.recommended.instances) == (2, 1)
    assert plan.recommended.instances_without_headroom == 1


@pytest.mark.slow
def test_a_priority_that_no_request_of_the_simulation_has_is_null():
    plan = optcli.plan(**AFFINE, rate_per_s=50, priorities={"never": 1e-9, "rest": 1 - 1e-9})
    assert plan.priorities[0].p95_ms is None
    assert plan.priorities[1].p95_ms > 0


@pytest.mark.slow
def test_instances_that_start_get_no_sealed_batches_before_they_are_ready():
    given = {"target": "ray", "peak_factor": 2, "cold_start_s": 3}
    scale = optcli.plan(**AFFINE, rate_per_s=100, **given).autoscaling
    assert scale.min_instances < scale.max_instances or scale.p95_ms_with_min <= 120
    # What waits for an instance that starts would wait for up to three seconds.
    assert scale.p95_ms_with_min <= 120


def test_each_priority_scales_down_to_its_own_share_of_the_lowest_traffic(monkeypatch):
    asked = []
    real = priorities.autoscaling

    def autoscaling(curve, demand, batching, lowest_per_s, *more):
        asked.append(lowest_per_s)
        return real(curve, demand, batching, lowest_per_s, *more)

    monkeypatch.setattr(priorities, "autoscaling", autoscaling)
    shares = {"high": 0.25, "low": 0.75}
    optcli.plan(**AFFINE, rate_per_s=200, priorities=shares, target="ray", cold_start_s=3)
    assert asked == pytest.approx([50, 150])
