"""Plans for a server with an ingress: what it bounds, what more instances cannot do, who shares it."""

from __future__ import annotations

from collections import deque

import pytest

import optcli
from optcli.queueing import Batching, Curve, Overhead, Poisson, simulate
from optcli.results.loadtest import Calibration
from optcli.results.plan import Plan
from optcli.serving.deploy import ray_lanes
from optcli.serving.loadtest import predicting
from optcli.serving.planning.traffic import beside_others, part_of

pytestmark = pytest.mark.usefixtures("hurried_plans")

# The ingress passes 500 a second.
SERVER = {
    "curve": "2ms+1ms*b",
    "overhead": {"after_ms": 1, "ingress_ms": 2},
    "slo": {"p95_ms": 60},
    "semantics": "sealed",
}


def planned(**settings: object) -> Plan:
    return optcli.plan(**{**SERVER, "rate_per_s": 300, **settings})


@pytest.mark.slow
def test_capacity_and_load_are_those_of_the_ingress_where_it_is_busier():
    plan = planned(instances=4)
    one = plan.recommended
    assert one.capacity_per_s == 500
    assert one.rate_at_utilisation_per_s == pytest.approx(350)
    assert one.utilisation == pytest.approx(300 / 500)
    assert one.utilisation_with_headroom == pytest.approx(1.2 * 300 / 500)
    assert one.max_rate_per_s < 500
    assert all(each.capacity_per_s <= 500 for each in plan.by_batch)
    assert all(each.utilisation == pytest.approx(each.rate_per_s / 500) for each in plan.by_rate)
    assert one.p95_ms > 2 + one.wait_ms
    assert one.stages.overhead_ms > 3
    slow = {"curve": "20ms+1ms*b", "rate_per_s": 100, "slo": {"p95_ms": 400}}
    busy = planned(**slow, instances=1, batch=8).recommended
    assert busy.capacity_per_s == pytest.approx(1000 * 8 / 28)


@pytest.mark.slow
def test_the_queue_is_no_longer_than_what_passes_the_ingress_in_time():
    plan = planned(instances=8, batch=8)
    one = plan.recommended
    # 60 ms, less 10 for a batch of 8, 1 behind it and 2 for the request itself; three quarters of it.
    assert one.ingress_cap == int(0.75 * (60 - 10 - 1 - 2) / 2) == 17
    assert one.max_in_flight == 17
    assert one.queue_cap <= 17
    assert one.reject_newest_cap <= 17
    (lane,) = ray_lanes.lanes_of(plan, None, force=False)
    assert lane.most_in_flight == 17
    without = planned(instances=8, batch=8, overhead={"after_ms": 1})
    assert without.recommended.ingress_cap is None
    assert ray_lanes.lanes_of(without, None, force=False)[0].most_in_flight > 64


@pytest.mark.slow
@pytest.mark.parametrize("ingress_ms", [0.7, 2.0, 5.0])
def test_who_is_let_in_at_an_overloaded_ingress_is_answered_in_time(ingress_ms):
    asked = {"overhead": {"after_ms": 1, "ingress_ms": ingress_ms}, "rate_per_s": 100}
    one = planned(**asked, instances=8, batch=4).recommended
    # Half as much again as the ingress passes; behind it there are instances enough.
    passed, after_ms = 0.0, 6.0 + 1.0
    inside: deque[float] = deque()
    answered, refused = [], 0
    for came in Poisson(1500 / ingress_ms).draw(20_000, 4).times_ms.tolist():
        while inside and inside[0] <= came:
            inside.popleft()
        if len(inside) >= one.max_in_flight:
            refused += 1
            continue
        passed = max(passed, came) + ingress_ms
        inside.append(passed + after_ms)
        answered.append(inside[-1] - came)
    assert max(answered) <= 60
    assert refused / 20_000 == pytest.approx(1 / 3, abs=0.05)


@pytest.mark.slow
def test_more_instances_are_not_named_where_the_ingress_gives_way():
    plan = planned(rate_per_s=320)
    by_factor = {each.factor: each for each in plan.breaks_first}
    half_more = by_factor[1.5]
    assert half_more.utilisation == pytest.approx(0.96)
    twice = by_factor[2.0]
    assert (twice.breaks, twice.instances) == ("capacity", None)
    assert twice.utilisation == pytest.approx(1.28)
    assert "the ingress cannot carry it (load 1.28)" in twice.then
    assert twice.then.endswith("more instances alone do not help, a second server does")
    assert "the load of the ingress is 0.77 with the headroom" in plan.reason


@pytest.mark.slow
def test_a_rate_above_the_ingress_names_servers_and_a_rate_but_no_instances():
    plan = planned(rate_per_s=600)
    assert plan.outcome == "not-kept"
    assert (
        "The ingress takes one request after the other: its load is 1.20, 1.44 with 20%" in plan.reason
    )
    assert "more instances do not help" in plan.reason
    would = {each.kind: each for each in plan.would}
    assert {"more-servers", "smaller-rate"} <= would.keys()
    assert not {"more-instances", "faster-artifact"} & would.keys()
    assert would["more-servers"].figure == 2
    assert planned(rate_per_s=600 / would["more-servers"].figure).is_kept
    assert would["smaller-rate"].figure < 500
    assert planned(rate_per_s=would["smaller-rate"].figure).is_kept
    fixed = planned(rate_per_s=600, instances=2)
    assert "more-instances" not in {each.kind for each in fixed.would}


@pytest.mark.slow
def test_without_a_rate_the_answer_is_what_the_ingress_carries():
    plan = planned(rate_per_s=None, instances=9)
    assert plan.rate_per_s <= 0.7 * 500 * (1 + 1e-9)
    assert plan.recommended.utilisation <= 0.7 + 1e-9


@pytest.mark.slow
def test_what_a_cache_answers_passes_the_ingress():
    hits = planned(rate_per_s=360, cache_hit_rate=0.5)
    assert hits.planned_rate_per_s == pytest.approx(180)
    one = hits.recommended
    # 360 a second keep the ingress busy, which passes 250 a second to the model at most.
    assert one.capacity_per_s == pytest.approx(250)
    assert one.utilisation == pytest.approx(0.72)
    (said,) = [each for each in hits.warnings if each.kind == "ingress"]
    assert said.figures["load"] == pytest.approx(0.72)
    alone = planned(rate_per_s=180)
    assert one.p95_ms > alone.recommended.p95_ms


@pytest.mark.slow
def test_priorities_share_the_ingress():
    shares = {"high": 0.25, "low": 0.75}
    plan = planned(rate_per_s=380, priorities=shares)
    assert plan.is_kept
    every = {each.name: each.configuration for each in plan.priorities}
    for name, share in shares.items():
        one = every[name]
        alone = planned(rate_per_s=380 * share, batch=one.batch, wait_ms=one.wait_ms)
        assert one.p95_ms > alone.recommended.p95_ms
        assert one.utilisation >= 0.76 * (1 - 1e-9)
        assert one.capacity_per_s <= 500 * share * (1 + 1e-9)
        # Of those that pass the ingress in time, its share.
        assert one.ingress_cap <= max(one.batch, share * 60 / 2)
    lanes = ray_lanes.lanes_of(plan, None, force=False)
    assert all(lane.most_in_flight <= every[lane.name].ingress_cap for lane in lanes)


@pytest.mark.slow
def test_priorities_whose_requests_together_are_too_many_for_the_ingress_break_the_plan():
    # Each for itself would pass it.
    plan = planned(rate_per_s=520, priorities={"high": 0.5, "low": 0.5}, instances=8)
    assert plan.outcome == "not-kept"
    assert planned(rate_per_s=260, instances=4).is_kept


@pytest.mark.parametrize("kind", ["poisson", "gamma:4", "constant", "bursts:700,1800ms,200ms"])
def test_a_part_beside_the_others_is_the_same_part(kind):
    from optcli.queueing.arrivals import parse

    process = parse(kind, 200.0)
    with_others = beside_others(process, 0.25)
    assert with_others.rate_per_s == pytest.approx(part_of(process, 0.25).rate_per_s)
    again = beside_others(with_others, 0.5)
    assert again.rate_per_s == pytest.approx(25)
    assert again.whole is process
    half = part_of(with_others, 0.5)
    assert (half.rate_per_s, half.whole.rate_per_s) == (pytest.approx(25), pytest.approx(100))
    assert beside_others(process, 1) is process


CALIBRATION = Calibration(
    model="m",
    measured="now",
    points_ms={1: 3.0, 8: 10.0},
    calls={1: 9, 8: 9},
    overhead_ms=3.0,
    ingress_ms=2.0,
    ingress_cv2=1.0,
    own_processors=True,
)


@pytest.mark.slow
def test_a_priority_is_predicted_beside_the_others_at_the_ingress():
    model = predicting.of_calibration(CALIBRATION)
    batching = Batching(8, 5, semantics="sealed")
    together = beside_others(Poisson(400), 0.25)
    here = predicting.predicted(model, batching, together, 0)
    alone = predicting.predicted(model, batching, Poisson(100), 0)
    assert (here.utilisation, alone.utilisation) == (pytest.approx(0.8), pytest.approx(0.2))
    assert here.p95_ms > 1.3 * alone.p95_ms
    too_many = predicting.predicted(model, batching, beside_others(Poisson(600), 0.25), 0)
    assert too_many.grows
    assert too_many.p95_ms is None


@pytest.mark.slow
def test_the_plan_of_a_calibrated_server_predicts_with_its_ingress():
    keys = predicting.plan_keys(CALIBRATION)
    plan = optcli.plan(**keys, rate_per_s=300, slo={"p95_ms": 60}, semantics="sealed")
    model = predicting.of_plan(plan)
    assert (model.overhead.ingress_ms, model.overhead.ingress_cv2) == (2.0, 1.0)
    by_plan = predicting.predicted(model, Batching(8, 5, semantics="sealed"), Poisson(300), 0)
    calibrated = predicting.of_calibration(CALIBRATION)
    again = predicting.predicted(calibrated, Batching(8, 5, semantics="sealed"), Poisson(300), 0)
    assert by_plan.p95_ms == pytest.approx(again.p95_ms)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [0.001, 0.02])
@pytest.mark.parametrize(
    "asked",
    [
        # Near the promise, where the formulas alone would drop one request in a hundred.
        {"curve": "6ms+4ms*b", "rate_per_s": 200, "p95_ms": 150, "instances": 1},
        {"curve": "2ms+1ms*b", "rate_per_s": 410, "p95_ms": 40, "overhead": {"ingress_ms": 2}},
    ],
)
def test_what_sealed_batches_refuse_at_the_planned_rate_is_within_the_error_budget(asked, budget):
    asked = dict(asked)
    slo = {"p95_ms": asked.pop("p95_ms"), "error_budget": budget}
    plan = optcli.plan(**asked, slo=slo, semantics="sealed", headroom=0, utilisation=1)
    assert plan.is_kept
    one = plan.recommended
    (lane,) = ray_lanes.lanes_of(plan, None, force=False)
    batching = Batching(one.batch, one.wait_ms, one.instances, semantics="sealed")
    overhead = Overhead(ingress_ms=asked.get("overhead", {}).get("ingress_ms", 0.0))
    run = simulate(
        Poisson(asked["rate_per_s"]).draw(60_000, 99), Curve.parse(asked["curve"]), batching, overhead
    )
    # Events in order of time: how often a request finds the server full.
    came = [(time, 1) for time in (run.finished_ms - run.latencies_ms).tolist()]
    events = sorted([*came, *((time, -1) for time in run.finished_ms.tolist())])
    inside = full = 0
    for _, change in events:
        full += change > 0 and inside >= lane.most_in_flight
        inside += change
    assert full / 60_000 < 4 * budget
