"""The parts of a plan beside the choice: cost, machines, cache, priorities, modes."""

from __future__ import annotations

import pytest

import optcli
from optcli.errors import UsageError
from optcli.measure.latency.measured_curve import curve_of
from optcli.measure.queueing.arrivals import parse
from optcli.measure.queueing.curve import Curve
from optcli.report import html, terminal
from optcli.report.plan import document
from optcli.results import Estimate, Report, Sweep, SweepPoint
from optcli.serving.planning import configuring, file_schema
from optcli.serving.planning.configuring import part_of

pytestmark = pytest.mark.usefixtures("hurried_plans")

GIVEN = {"curve": "2ms+1ms*b", "rate_per_s": 300, "slo": {"p95_ms": 100}}


@pytest.mark.slow
def test_cost_is_of_a_thousand_inferences_and_instances_share_machines():
    plan = optcli.plan(**{**GIVEN, "rate_per_s": 6000}, price_per_hour=3.6, instances_per_machine=3)
    one = plan.recommended
    assert one.machines == -(-one.instances // 3)
    assert one.cost_per_1000 == pytest.approx(one.machines / 6000)
    assert "shared-machine" in {each.kind for each in plan.notes}


@pytest.mark.slow
def test_a_cache_takes_its_hits_from_the_model():
    plan = optcli.plan(**GIVEN, cache_hit_rate=0.4)
    assert plan.rate_per_s == 300
    assert plan.planned_rate_per_s == pytest.approx(180)
    assert plan.recommended.utilisation < optcli.plan(**GIVEN).recommended.utilisation


SEALED = {
    "overhead": {"ingress_ms": 0, "after_ms": 0},
    "curve": "6ms+4ms*b",
    "rate_per_s": 200,
    "slo": {"p95_ms": 120},
    "target": "ray",
    "priorities": {"high": 0.2, "low": 0.8},
}


@pytest.mark.slow
def test_sealed_batches_give_each_priority_instances_of_its_own():
    plan = optcli.plan(**SEALED)
    alone = {
        name: optcli.plan(**{**SEALED, "rate_per_s": 200 * share, "priorities": {}}).recommended
        for name, share in SEALED["priorities"].items()
    }
    assert plan.outcome == "kept"
    for each in plan.priorities:
        # The same as a plan for its part of the traffic.
        assert each.configuration == alone[each.name]
        assert each.p95_ms == each.configuration.p95_ms <= 120
    together = sum(each.configuration.instances for each in plan.priorities)
    (said,) = (each.text for each in plan.notes if each.kind == "priorities")
    assert "an application of its own" in said
    assert f"{together} instances together" in said
    lines = terminal.text(document(plan)).splitlines()
    assert any(line.startswith("  high (20%): p50") and "of its own, batch" in line for line in lines)


@pytest.mark.slow
def test_a_fixed_number_of_instances_is_shared_out_by_traffic():
    assert configuring.shared_out(5, [0.2, 0.8]) == [1, 4]
    assert configuring.shared_out(6, [0.5, 0.3, 0.2]) == [3, 2, 1]
    assert configuring.shared_out(1, [0.2, 0.8]) == [1, 1]
    assert configuring.shared_out(None, [0.2, 0.8]) == [None, None]
    plan = optcli.plan(**SEALED, instances=5)
    assert [each.configuration.instances for each in plan.priorities] == [1, 4]


@pytest.mark.slow
def test_a_priority_that_cannot_keep_the_promise_breaks_the_plan():
    # Two carry all of it together; apart, one of them has 160 a second.
    asked = {**SEALED, "instances": 2, "rate_per_s": 380}
    assert optcli.plan(**{**asked, "priorities": {}}).outcome == "kept"
    plan = optcli.plan(**asked)
    assert plan.outcome == "not-kept"
    assert "for the priority low" in plan.sentence
    high, low = plan.priorities
    assert high.configuration is not None
    assert (low.configuration, low.p95_ms) == (None, None)
    said = terminal.text(document(plan))
    assert "\n  low (80%): no configuration of its own keeps the promise\n" in said


@pytest.mark.parametrize("arrivals", ["poisson", "constant", "gamma:4", "bursts:400,1800ms,200ms"])
def test_a_part_of_the_traffic_has_its_share(arrivals):
    process = parse(arrivals, 100.0)
    part = part_of(process, 0.25)
    assert part.rate_per_s == pytest.approx(25)
    times = part.draw(40_000, 3).times_ms
    assert 1000 * len(times) / times[-1] == pytest.approx(25, rel=0.1)


def test_a_recipe_in_the_place_of_a_plan_file_is_told_apart(tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("version: 1\nname: a\nmodel: {source: x}\nvariants: {a: []}\n")
    with pytest.raises(UsageError, match="this is a recipe") as caught:
        optcli.plan(recipe, rate_per_s=9, slo={"p95_ms": 9})
    assert "report.json" in caught.value.hint


def test_a_curve_is_scaled_in_every_form():
    for curve in (
        Curve.parse("6ms+4ms*b"),
        Curve.parse("1:10ms,8:38ms"),
        Curve.from_samples({1: [9.0, 11.0], 8: [37.0, 39.0]}),
    ):
        assert curve.scaled(0.5).time_ms(8) == pytest.approx(19)


def swept(*points, **options):
    return Sweep(
        points=tuple(
            SweepPoint(
                batch_size=size,
                p50_ms=Estimate(value=ms),
                throughput_per_s=1000 * size / ms,
                samples=500,
                **{"fit": True, "quantiles_ms": (0.9 * ms, ms, 1.1 * ms), **more},
            )
            for size, ms, more in points
        ),
        stopped_because="64 is the largest wanted",
        **options,
    )


def with_sweep(sweep):
    variants = {"eager": {"status": "built", "sweep": sweep.model_dump()}}
    return Report.model_validate(
        {
            "schema": 2,
            "recipe": {"name": "tiny", "path": "tiny.yaml", "digest": "d"},
            "environment": {},
            "baseline": "eager",
            "recommended": None,
            "recommendation": "",
            "started": "2026-03-01T12:00:00+00:00",
            "finished": "2026-03-01T12:00:00+00:00",
            "exit_code": 0,
            "variants": variants,
        }
    )


@pytest.mark.slow
def test_the_curve_of_a_report_is_its_sweep_with_measured_calls():
    report = with_sweep(swept((1, 10.0, {}), (2, 14.0, {}), (8, 38.0, {})))
    known = curve_of(report, None, None)
    assert known.curve.sizes == (1, 2, 8)
    assert known.curve.time_ms(8) == pytest.approx(38)
    assert sorted(known.curve.samples_ms[1]) == pytest.approx([9.5, 10.5])
    assert known.warnings == ()
    plan = optcli.plan(report, rate_per_s=60, slo={"p95_ms": 120})
    assert plan.curve.samples_ms
    assert plan.outcome == "kept"
    assert plan.curve.source == "the sweep of eager in tiny"


def test_a_sweep_without_quantiles_is_a_table():
    points = [(1, 10.0, {"quantiles_ms": ()}), (8, 38.0, {})]
    known = curve_of(with_sweep(swept(*points)), "eager", None)
    assert not known.curve.samples_ms
    assert known.curve.time_ms(1) == 10


def test_points_that_other_work_disturbed_are_left_out():
    points = [(1, 10.0, {}), (2, 50.0, {"fit": False}), (8, 38.0, {"spread": 0.4})]
    known = curve_of(with_sweep(swept(*points)), "eager", None)
    assert known.curve.sizes == (1, 8)
    assert not known.unfit
    assert [each.kind for each in known.warnings] == ["environment-not-fit", "noisy"]


@pytest.mark.slow
def test_a_curve_of_a_busy_machine_decides_nothing():
    points = [(1, 10.0, {"fit": False}), (8, 38.0, {"fit": False})]
    plan = optcli.plan(with_sweep(swept(*points)), rate_per_s=60, slo={"p95_ms": 120})
    assert plan.outcome == "inconclusive"
    assert plan.notes[0].kind == "environment-not-fit"


def test_a_variant_that_was_not_measured_has_no_curve():
    report = with_sweep(swept())
    with pytest.raises(UsageError, match="has no latency"):
        curve_of(report, "eager", None)
    with pytest.raises(UsageError, match="no variant 'eagre'") as caught:
        curve_of(report, "eagre", None)
    assert "did you mean 'eager'?" in caught.value.hint


@pytest.mark.slow
def test_a_rate_above_what_sealed_batches_carry_is_told_without_a_wait():
    plan = optcli.plan(
        curve="1:4.6ms,2:8.2ms,4:16.4ms,8:32ms",
        rate_per_s=583,
        slo={"p95_ms": 150},
        target="ray",
        instances=1,
        overhead={"ingress_ms": 0, "after_ms": 0},
    )
    assert plan.recommended is None
    assert "No wait is long enough for 1 instance" in plan.reason + plan.sentence


@pytest.mark.slow
def test_several_waits_stand_side_by_side_and_the_best_is_taken():
    given = {"curve": "6ms+4ms*b", "rate_per_s": 200, "slo": {"p95_ms": 120}}
    plan = optcli.plan(**given, wait_ms=[25, 0, 5], target="ray", overhead={"ingress_ms": 0})
    assert [each.wait_ms for each in plan.by_wait] == [0, 5, 25]
    assert plan.recommended.wait_ms in (0, 5, 25)
    at_once, chosen = plan.by_wait[0], plan.by_wait[-1]
    # Two instances with single requests carry 200 a second at most.
    assert not at_once.kept
    assert at_once.max_rate_per_s < chosen.max_rate_per_s
    assert chosen.kept
    assert chosen.mean_batch > at_once.mean_batch
    alone = optcli.plan(**given, wait_ms=25, target="ray", overhead={"ingress_ms": 0})
    assert alone.by_wait == ()
    if alone.recommended.batch == plan.recommended.batch:
        assert alone.recommended.max_rate_per_s == chosen.max_rate_per_s
    none = optcli.plan(**{**given, "slo": {"p95_ms": 9}}, wait_ms=[0, 5])
    assert none.outcome == "not-kept"
    assert len(none.by_wait) == 2


def test_without_a_rate_the_largest_batch_within_the_promise_is_the_answer():
    asked = {"curve": "1:6.2ms,4:9.1ms,16:21ms,64:74ms"}
    plan = optcli.plan(**asked, slo={"p95_ms": 30})
    assert (plan.outcome, plan.recommended, plan.rate_per_s) == ("kept", None, None)
    assert "is 16: one instance carries 762 a second" in plan.sentence
    assert [each.kept for each in plan.by_batch] == [True, True, True, False]
    assert "64     74.0" in terminal.text(document(plan))
    tighter = optcli.plan(**asked, slo={"p95_ms": 30}, overhead={"before_ms": 15})
    assert "is 4:" in tighter.sentence
    assert optcli.plan(**asked, slo={"p95_ms": 6}).outcome == "not-kept"


@pytest.mark.parametrize(
    ("asked", "mode"),
    [
        ({"freshness_s": 28_800}, "batch"),
        ({"freshness_s": 28_800, "slo": {"p95_ms": 200}}, "hybrid"),
        ({"freshness_s": 20, "slo": {"p95_ms": 200}}, "real-time"),
    ],
)
def test_the_mode_needs_neither_a_rate_nor_a_curve(asked, mode):
    plan = optcli.plan(**asked)
    assert (plan.outcome, plan.mode.mode) == ("kept", mode)
    assert plan.sentence.lower().startswith(mode)
    assert terminal.text(document(plan))
    assert html.html(document(plan))


def test_the_targets_of_a_plan_are_those_of_deploy():
    from optcli.serving import targets

    assert set(file_schema()["properties"]["target"]["enum"]) == set(targets.names())
