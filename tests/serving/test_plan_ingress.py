"""Plans for a server with an ingress: what it bounds, what more instances cannot do, who shares it."""

from __future__ import annotations

from collections import deque

import pytest

import optcli
from optcli.measure.queueing.arrivals import Poisson
from optcli.measure.queueing.batching import Batching, Overhead
from optcli.measure.queueing.curve import Curve
from optcli.measure.queueing.simulation import simulate
from optcli.results.loadtest import Calibration
from optcli.results.plan import Plan
from optcli.serving.deploy import ray_config
from optcli.serving.loadtest import predicting
from optcli.serving.loadtest.verdicts import LoadTerms
from optcli.serving.planning import configuring

pytestmark = pytest.mark.usefixtures("hurried_plans")

# The ingress passes 500 a second.
SERVER = {
    "curve": "2ms+1ms*b",
    "overhead": {"after_ms": 1, "ingress_ms": 2},
    "slo": {"p95_ms": 60},
    "target": "ray",
}


def planned(**settings: object) -> Plan:
    return optcli.plan(**{**SERVER, "rate_per_s": 300, **settings})


@pytest.mark.slow
def test_capacity_and_load_are_those_of_the_ingress_where_it_is_busier():
    one_process = {**SERVER["overhead"], "ingresses": 1}
    plan = planned(instances=4, overhead=one_process)
    one = plan.recommended
    assert one.ingresses == 1
    assert one.capacity_per_s == 500
    assert one.rate_at_utilisation_per_s == pytest.approx(350)
    assert one.utilisation == pytest.approx(300 / 500)
    assert one.utilisation_with_headroom == pytest.approx(1.2 * 300 / 500)
    assert one.max_rate_per_s < 500
    assert all(each.capacity_per_s <= 500 for each in plan.by_batch)
    assert all(each.utilisation == pytest.approx(each.rate_per_s / 500) for each in plan.by_rate)
    assert one.p95_ms > 2 + one.wait_ms
    slow = {"curve": "20ms+1ms*b", "rate_per_s": 100, "slo": {"p95_ms": 400}}
    busy = planned(**slow, instances=1, batch=8).recommended
    assert busy.capacity_per_s == pytest.approx(1000 * 8 / 28)


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "processes"), [(100, 1), (290, 1), (300, 2), (900, 4)])
def test_the_ingress_gets_the_processes_that_the_rate_takes(rate, processes):
    # 500 a second pass each, of which 0.7 is to be used with 20 % headroom.
    one = planned(rate_per_s=rate).recommended
    assert one.ingresses == processes
    assert one.utilisation_with_headroom <= 0.7 + 1e-9


@pytest.mark.slow
def test_one_bound_says_how_many_requests_are_let_in():
    plan = planned(instances=8, batch=8, overhead={**SERVER["overhead"], "ingresses": 1})
    one = plan.recommended
    # 60 ms, less 10 for a batch of 8, 1 behind it and 2 for the request itself; three quarters of it.
    assert one.max_in_flight == int(0.75 * (60 - 10 - 1 - 2) / 2) == 17
    assert one.queue_cap == 0  # the instances compute up to 64 at a time
    (lane,) = ray_config.lanes_of(plan, None, force=False)
    assert lane.most_in_flight == 17
    for asked in ({"target": "triton"}, {"overhead": {"ingress_ms": 0, "after_ms": 1}}):
        free = planned(**{"instances": 2, "batch": 8, **asked}).recommended
        assert free.max_in_flight == free.queue_cap + 2 * 8


@pytest.mark.slow
@pytest.mark.parametrize("ingress_ms", [0.7, 2.0, 5.0])
def test_who_is_let_in_at_an_overloaded_ingress_is_answered_in_time(ingress_ms):
    beside = {"after_ms": 1, "ingress_ms": ingress_ms, "ingresses": 1}
    one = planned(overhead=beside, rate_per_s=100, instances=8, batch=4).recommended
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
def test_a_rate_above_a_fixed_ingress_is_not_kept():
    fixed = {**SERVER["overhead"], "ingresses": 1}
    plan = planned(rate_per_s=600, overhead=fixed)
    assert plan.outcome == "not-kept"
    assert "The ingress has a load of 1.20, and more instances do not help it." in plan.reason
    assert planned(rate_per_s=600).outcome == "kept"


@pytest.mark.slow
def test_without_a_rate_the_answer_is_what_the_ingress_carries():
    plan = planned(rate_per_s=None, instances=9, overhead={**SERVER["overhead"], "ingresses": 1})
    assert plan.rate_per_s <= 0.7 * 500 * (1 + 1e-9)
    assert plan.recommended.utilisation <= 0.7 + 1e-9
    more = planned(rate_per_s=None, instances=2)
    assert more.rate_per_s > 0.7 * 500
    assert more.recommended.ingresses > 1


@pytest.mark.slow
def test_what_a_cache_answers_passes_the_ingress():
    fixed = {**SERVER["overhead"], "ingresses": 1}
    hits = planned(rate_per_s=300, cache_hit_rate=0.5, overhead=fixed, utilisation=0.5, instances=1)
    assert hits.planned_rate_per_s == pytest.approx(150)
    one = hits.recommended
    # 300 a second keep the ingress busy, which passes 250 a second to the model at most.
    assert one.capacity_per_s == pytest.approx(250)
    assert one.utilisation == pytest.approx(0.6)
    (said,) = [each for each in hits.notes if each.kind == "ingress"]
    assert said.figures["load"] == pytest.approx(0.6)
    alone = planned(rate_per_s=150, overhead=fixed, utilisation=0.5, instances=1)
    assert one.p95_ms > alone.recommended.p95_ms


@pytest.mark.slow
def test_what_is_not_known_of_a_server_is_taken_as_it_was_measured_and_said():
    given = {"curve": "2ms+1ms*b", "rate_per_s": 100, "slo": {"p95_ms": 60}}
    ray, triton = (optcli.plan(**given, target=name) for name in ("ray", "triton"))
    assert (ray.overhead.ingress_ms, triton.overhead.ingress_ms) == (4, 0)
    assert "assumed-overhead" in {each.kind for each in ray.notes}
    assert "assumed-overhead" not in {each.kind for each in triton.notes}
    assert ray.asked["overhead"] == {}
    large = optcli.plan(**{**given, "rate_per_s": 20}, target="ray", request_bytes=2_000_000)
    assert large.overhead.ingress_ms == pytest.approx(4 + 2 * 3.5)
    (said,) = [each for each in large.notes if each.kind == "assumed-overhead"]
    assert "11 ms for each request, which has 2 MB" in said.text
    known = optcli.plan(**given, target="ray", overhead={"ingress_ms": 1}, request_bytes=2_000_000)
    assert (known.overhead.ingress_ms, known.overhead.after_ms) == (1, 3.5)
    assert "assumed-overhead" not in {each.kind for each in known.notes}


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
def test_the_plan_of_a_calibrated_server_predicts_with_its_ingress():
    keys = predicting.plan_keys(CALIBRATION)
    plan = optcli.plan(**keys, rate_per_s=300, slo={"p95_ms": 60}, target="ray")
    model = predicting.of_plan(plan)
    assert (model.overhead.ingress_ms, model.overhead.ingress_cv2) == (2.0, 1.0)
    by_plan = predicting.predicted(model, Batching(8, 5, semantics="sealed"), Poisson(300))
    calibrated = predicting.of_calibration(CALIBRATION, plan.recommended.ingresses)
    again = predicting.predicted(calibrated, Batching(8, 5, semantics="sealed"), Poisson(300))
    assert by_plan.p95_ms == pytest.approx(again.p95_ms)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["ray", "triton"])
def test_a_load_test_predicts_the_numbers_that_the_plan_says(monkeypatch, target):
    monkeypatch.setattr(predicting, "Demand", configuring.Demand)
    plan = planned(target=target, curve="1:3ms,4:6ms,8:10ms")
    again = Plan.model_validate_json(plan.to_json())
    one, model = again.recommended, predicting.of_plan(again)
    batching = Batching(one.batch, one.wait_ms, one.instances, semantics=one.semantics)
    terms = LoadTerms({"p95": 60.0})
    assert predicting.highest(model, batching, Poisson(100), terms) == one.max_rate_per_s
    here = predicting.predicted(model, batching, Poisson(300))
    assert here.p95_ms == pytest.approx(one.p95_ms)
    assert here.utilisation == pytest.approx(one.utilisation)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [0.001, 0.02])
@pytest.mark.parametrize(
    "asked",
    [
        # Near the promise, where the formulas alone would drop one request in a hundred.
        {"curve": "6ms+4ms*b", "rate_per_s": 200, "p95_ms": 150, "instances": 1, "ingress_ms": 0},
        {"curve": "2ms+1ms*b", "rate_per_s": 410, "p95_ms": 40, "ingress_ms": 2},
    ],
)
def test_what_sealed_batches_refuse_at_the_planned_rate_is_within_the_error_budget(asked, budget):
    asked = dict(asked)
    slo = {"p95_ms": asked.pop("p95_ms"), "error_budget": budget}
    ingress_ms = asked.pop("ingress_ms")
    beside = {"after_ms": 0, "ingress_ms": ingress_ms, "ingress_cv2": 0, "ingresses": 1}
    plan = optcli.plan(**asked, slo=slo, target="ray", headroom=0, utilisation=1, overhead=beside)
    assert plan.outcome == "kept"
    one = plan.recommended
    (lane,) = ray_config.lanes_of(plan, None, force=False)
    batching = Batching(one.batch, one.wait_ms, one.instances, semantics="sealed")
    overhead = Overhead(ingress_ms=ingress_ms)
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
