"""The worked examples of a promise to keep, each as one plan: what is recommended, and its figures."""

from __future__ import annotations

import pytest

import optcli

pytestmark = pytest.mark.usefixtures("hurried_plans")

AFFINE = "6ms+4ms*b"
SMALL = "4ms+1ms*b"
SEGMENTATION = {
    "curve": "1:25ms,2:27ms,4:34ms,8:48ms",
    "overhead": {"after_ms": 10},
    "rate_per_s": 120,
    "slo": {"p95_ms": 140},
}


def recommended(**settings):
    """The recommended configuration; there must be one."""
    plan = optcli.plan(**settings)
    assert plan.outcome == "kept", plan.reason
    return plan.recommended


@pytest.mark.usefixtures("exact_plans")
def test_one_instance_at_200_a_second_has_no_headroom_so_that_two_are_recommended():
    one = recommended(curve=AFFINE, rate_per_s=200, slo={"p95_ms": 120})
    assert (one.batch, one.wait_ms, one.instances) == (8, 10, 2)
    assert one.utilisation == pytest.approx(0.475, abs=0.001)
    assert one.busy == pytest.approx(0.598, abs=0.01)
    assert one.p50_ms == pytest.approx(27.5, rel=0.015)
    assert one.p95_ms == pytest.approx(39.5, rel=0.02)
    assert one.p99_ms == pytest.approx(44.0, rel=0.02)
    assert one.mean_batch == pytest.approx(3.04, rel=0.02)
    assert one.max_rate_per_s == pytest.approx(397, rel=0.02)


@pytest.mark.slow
@pytest.mark.usefixtures("exact_plans")
def test_where_a_second_instance_is_forbidden_one_keeps_it_with_a_warning():
    plan = optcli.plan(curve=AFFINE, rate_per_s=200, slo={"p95_ms": 120}, instances=1)
    one = plan.recommended
    assert plan.outcome == "kept"
    assert one.batch == 16
    assert one.wait_ms <= 10
    assert one.p95_ms == pytest.approx(115.5, rel=0.04)
    assert "no-headroom" in {each.kind for each in plan.notes}


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "wait_ms"), [(8, 40), (8, 20), (16, 20)])
def test_what_the_usual_sum_promises_on_one_instance_is_broken(batch, wait_ms):
    plan = optcli.plan(
        curve=AFFINE, rate_per_s=200, slo={"p95_ms": 120}, batch=batch, wait_ms=wait_ms, instances=1
    )
    assert plan.outcome == "not-kept"
    assert plan.recommended is None


@pytest.mark.slow
def test_poisson_traffic_of_500_a_second_needs_one_replica_and_bursts_two():
    given = {"curve": SMALL, "rate_per_s": 500, "slo": {"p99_ms": 50}, "headroom": 0}
    calm = recommended(**given)
    assert (calm.batch, calm.instances) == (16, 1)
    assert 5 <= calm.wait_ms <= 10
    assert calm.utilisation == pytest.approx(0.625)
    assert calm.p99_ms < 30
    assert calm.max_rate_per_s == pytest.approx(708, rel=0.02)
    assert calm.max_in_flight == calm.queue_cap + calm.batch
    assert calm.queue_cap >= 16
    bursty = recommended(**given, arrivals="bursts:1400,1800ms,200ms")
    assert (bursty.batch, bursty.wait_ms, bursty.instances) == (16, 10, 2)
    assert bursty.p50_ms == pytest.approx(17.9, rel=0.03)
    assert bursty.p95_ms == pytest.approx(27.8, rel=0.03)
    assert bursty.p99_ms == pytest.approx(31.4, rel=0.05)


@pytest.mark.slow
def test_with_the_usual_headroom_500_a_second_need_two_replicas():
    one = recommended(curve=SMALL, rate_per_s=500, slo={"p99_ms": 50})
    assert one.instances == 2


def test_seven_instances_with_headroom_and_six_without():
    given = {"curve": "12ms", "concurrency": 2, "rate_per_s": 600, "slo": {"p99_ms": 50}}
    one = recommended(**given)
    assert (one.instances, recommended(**given, headroom=0).instances) == (7, 6)
    assert one.rate_at_utilisation_per_s / one.instances == pytest.approx(116.7, abs=0.05)
    assert one.utilisation == pytest.approx(0.514, abs=0.001)
    assert one.utilisation_with_headroom == pytest.approx(0.617, abs=0.001)
    assert one.p99_ms == pytest.approx(12.8, rel=0.02)


@pytest.mark.slow
def test_segmentation_waits_no_longer_than_its_delay_budget():
    one = recommended(**SEGMENTATION, headroom=0, utilisation=0.8)
    assert (one.batch, one.instances) == (8, 1)
    assert one.wait_ms <= one.longest_wait_ms == 34
    assert one.utilisation == pytest.approx(0.72)
    assert one.p95_ms == pytest.approx(98.9, rel=0.02)
    assert one.p99_ms == pytest.approx(116.7, rel=0.03)
    assert one.max_rate_per_s == pytest.approx(144, rel=0.02)


@pytest.mark.slow
def test_segmentation_at_the_defaults_takes_two_instances():
    plan = optcli.plan(**SEGMENTATION)
    assert plan.recommended.instances == 2
    assert plan.curve.fixed_ms == pytest.approx(20.91, abs=0.005)
    assert plan.curve.per_image_ms == pytest.approx(3.357, abs=0.0005)


@pytest.mark.slow
def test_the_usual_sum_of_an_api_stands_beside_the_simulated_p95():
    one = recommended(
        curve="1:18ms,2:20ms,4:24ms,8:32ms",
        overhead={"before_ms": 6, "after_ms": 4},
        rate_per_s=100,
        slo={"p95_ms": 120},
        batch=4,
        wait_ms=10,
        headroom=0,
    )
    assert one.instances == 1
    assert one.sum_ms == pytest.approx(44)
    assert one.capacity_per_s == pytest.approx(166.7, abs=0.05)
    assert one.utilisation == pytest.approx(0.6)
    assert 44 < one.p95_ms < 120


@pytest.mark.slow
def test_a_detector_at_the_edge_neither_batches_nor_waits():
    one = recommended(
        curve="1:12ms,2:22ms,4:42ms",
        rate_per_s=10,
        arrivals="constant",
        slo={"p95_ms": 200},
        overhead={"before_ms": 4, "after_ms": 4},
        headroom=0,
    )
    assert (one.batch, one.wait_ms, one.instances) == (1, 0, 1)
    assert one.p95_ms == pytest.approx(20, abs=0.1)


@pytest.mark.slow
def test_without_a_rate_fixed_instances_say_what_they_carry():
    plan = optcli.plan(curve="40ms", instances=2, slo={"p95_ms": 200})
    one = plan.recommended
    assert one.capacity_per_s == 50
    assert plan.rate_per_s == pytest.approx(35)
    assert one.all_in_time == 10
    assert one.max_in_flight == one.queue_cap + 2 >= 10
    inside = optcli.plan(curve="40ms", instances=1, concurrency=4, slo={"p95_ms": 200}).recommended
    assert inside.capacity_per_s == 100
    assert inside.rate_at_utilisation_per_s == pytest.approx(70)


@pytest.mark.slow
def test_the_sum_of_batch_8_and_20_ms_is_58_ms_at_210_a_second():
    one = recommended(
        curve=AFFINE, rate_per_s=50, slo={"p95_ms": 120}, batch=8, wait_ms=20, instances=1
    )
    assert one.sum_ms == 58
    assert one.capacity_per_s == pytest.approx(210.5, abs=0.05)


@pytest.mark.slow
def test_a_flat_curve_is_served_in_batches_of_eight():
    one = recommended(
        curve="1:20ms,8:25ms", rate_per_s=200, slo={"p95_ms": 120}, arrivals="gamma:4", headroom=0
    )
    assert one.batch == 8
    assert one.capacity_per_s / one.instances == pytest.approx(320)
    assert one.queue_cap > 0


@pytest.mark.slow
def test_the_largest_batch_within_30_ms_is_of_the_measured_sizes():
    plan = optcli.plan(
        curve="1:6.2ms,4:9.1ms,16:21ms,64:74ms", rate_per_s=300, slo={"p95_ms": 30}, headroom=0
    )
    assert plan.curve.fixed_ms == pytest.approx(4.60, abs=0.005)
    assert plan.curve.per_image_ms == pytest.approx(1.081, abs=0.0005)
    assert plan.curve.largest_within_slo == 16


@pytest.mark.slow
def test_a_classifier_at_triple_traffic_needs_five_replicas_in_batches_of_32():
    one = recommended(curve="4.60ms+1.081ms*b", rate_per_s=2400, slo={"p95_ms": 100}, headroom=0)
    assert (one.batch, one.wait_ms, one.instances) == (32, 10, 5)
    assert one.capacity_per_s / one.instances == pytest.approx(820, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "mode"),
    [
        ({"freshness_s": 28_800, "rate_per_s": 3}, "batch"),
        ({"slo": {"p95_ms": 200}, "rate_per_s": 10}, "real-time"),
        ({"slo": {"p95_ms": 200}, "freshness_s": 28_800, "rate_per_s": 30}, "hybrid"),
    ],
)
def test_the_mode_follows_from_freshness_and_latency(asked, mode):
    plan = optcli.plan(**asked, curve="12ms")
    assert plan.outcome == "kept"
    assert plan.mode.mode == mode


@pytest.mark.slow
@pytest.mark.parametrize("wait_ms", [10, 20])
def test_a_sealed_batcher_is_refused_below_its_least_wait(wait_ms):
    given = {
        "curve": AFFINE,
        "rate_per_s": 200,
        "slo": {"p95_ms": 500},
        "target": "ray",
        "overhead": {"ingress_ms": 0, "after_ms": 0},
    }
    given |= {"instances": 1, "batch": 16}
    plan = optcli.plan(**given, wait_ms=wait_ms)
    assert plan.outcome == "not-kept"
    assert "grows without bound under 25 ms" in plan.reason
    checked = optcli.plan(**given)
    assert checked.outcome == "kept"
    assert checked.recommended.wait_ms > 25
    assert checked.recommended.least_wait_ms == pytest.approx(25)


@pytest.mark.slow
def test_a_sealed_batcher_of_500_a_second_needs_6_ms_at_least():
    plan = optcli.plan(
        curve=SMALL,
        rate_per_s=500,
        slo={"p99_ms": 50},
        target="ray",
        overhead={"ingress_ms": 0, "after_ms": 0},
        instances=1,
        batch=16,
        wait_ms=5,
    )
    assert plan.outcome == "not-kept"
    assert "under 6 ms" in plan.reason


@pytest.mark.slow
def test_a_sealed_batcher_waits_where_the_simulation_has_the_least_latency():
    free = {"ingress_ms": 0, "after_ms": 0}
    asked = {"rate_per_s": 200, "slo": {"p95_ms": 150}, "target": "ray", "instances": 1}
    one = recommended(curve=AFFINE, **asked, overhead=free)
    assert one.batch == 16
    assert 30 < one.wait_ms <= 60
    assert one.p95_ms == pytest.approx(143, rel=0.05)
