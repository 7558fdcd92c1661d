"""What a plan says would keep the promise: each of it is put into a plan, which then keeps it."""

from __future__ import annotations

import pytest

import optcli

pytestmark = pytest.mark.usefixtures("hurried_plans")

CASES = {
    "one instance": {
        "curve": "6ms+4ms*b",
        "rate_per_s": 200,
        "slo": {"p95_ms": 120},
        "instances": 1,
        "batch": 8,
        "wait_ms": 40,
    },
    "under the fastest batch": {"curve": "6ms+4ms*b", "rate_per_s": 200, "slo": {"p95_ms": 9}},
    "too long a wait": {
        "curve": "6ms+4ms*b",
        "rate_per_s": 60,
        "slo": {"p95_ms": 50},
        "batch": 16,
        "wait_ms": 80,
    },
    "a table": {
        "curve": "1:25ms,2:27ms,4:34ms,8:48ms",
        "overhead": {"after_ms": 10},
        "rate_per_s": 240,
        "slo": {"p95_ms": 140},
        "instances": 1,
    },
    "bursts": {
        "curve": "4ms+1ms*b",
        "rate_per_s": 500,
        "arrivals": "bursts:1400,1800ms,200ms",
        "slo": {"p99_ms": 50},
        "instances": 1,
    },
    "two percentiles": {
        "curve": "8ms+6ms*b",
        "rate_per_s": 130,
        "slo": {"p50_ms": 16, "p99_ms": 90},
        "instances": 1,
    },
    "sealed": {
        "curve": "6ms+4ms*b",
        "rate_per_s": 200,
        "slo": {"p95_ms": 150},
        "target": "ray",
        "overhead": {"ingress_ms": 0, "after_ms": 0},
        "instances": 1,
        "wait_ms": 20,
    },
    "sealed, too small a batch": {
        "curve": "6ms+4ms*b",
        "rate_per_s": 220,
        "slo": {"p95_ms": 300},
        "target": "ray",
        "overhead": {"ingress_ms": 0, "after_ms": 0},
        "instances": 1,
        "batch": 8,
        "wait_ms": 10,
    },
    "a busy ingress": {
        "curve": "2ms+1ms*b",
        "overhead": {"ingress_ms": 2.0, "ingress_cv2": 1.0, "ingresses": 1},
        "rate_per_s": 600,
        "slo": {"p95_ms": 60},
        "target": "ray",
    },
}


def faster(curve, times):
    if "+" in curve:
        fixed, each = (float(part.split("ms")[0]) for part in curve.split("+"))
        return f"{fixed / times}ms+{each / times}ms*b"
    points = (point.removesuffix("ms").split(":") for point in curve.split(","))
    return ",".join(f"{size}:{float(ms) / times}ms" for size, ms in points)


def slower_traffic(given, rate):
    kind, _, rest = given.get("arrivals", "poisson").partition(":")
    if kind != "bursts":
        return {"rate_per_s": rate}
    burst, *lengths = rest.split(",")
    scaled = float(burst) * rate / given["rate_per_s"]
    return {"rate_per_s": rate, "arrivals": f"bursts:{scaled},{','.join(lengths)}"}


def with_longer_promise(given, text):
    new = dict(given["slo"])
    for name in new:
        if f"{name.removesuffix('_ms')} " in text:
            new[name] = float(text.split(f"{name.removesuffix('_ms')} ")[1].split(" ms")[0])
    return {"slo": new}


def applied(given, would):
    """The plan's settings with what would keep the promise in them."""
    changes = {
        "faster-artifact": lambda: {"curve": faster(given["curve"], would.figure)},
        "more-instances": lambda: {"instances": int(would.figure)},
        "smaller-rate": lambda: slower_traffic(given, would.figure),
        "longer-promise": lambda: with_longer_promise(given, would.text),
        "other-batch": lambda: {"batch": int(would.figure), "wait_ms": None},
    }
    return {**given, **changes[would.kind]()}


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_a_plan_with_what_would_keep_the_promise_keeps_it(name):
    plan = optcli.plan(**CASES[name])
    assert plan.outcome == "not-kept"
    assert plan.would
    for each in plan.would:
        settings = {
            key: value for key, value in applied(CASES[name], each).items() if value is not None
        }
        assert optcli.plan(**settings).outcome == "kept", each.text


@pytest.mark.slow
def test_another_batch_is_named_where_the_given_one_is_too_small():
    plan = optcli.plan(**CASES["sealed, too small a batch"])
    assert "other-batch" in {each.kind for each in plan.would}
    assert "No wait is long enough" in plan.reason


@pytest.mark.slow
def test_a_largest_batch_that_seldom_fills_is_no_reason_against_a_plan():
    # A batch of 64 takes 262 ms, but at 60 a second batches are of two.
    plan = optcli.plan(curve="6ms+4ms*b", rate_per_s=60, slo={"p95_ms": 120}, batch=64, instances=1)
    assert plan.outcome == "kept"


def test_more_than_a_thousand_instances_is_a_smaller_rate_or_a_faster_artifact():
    plan = optcli.plan(curve="100ms", rate_per_s=20_000, slo={"p95_ms": 500})
    assert plan.outcome == "not-kept"
    assert "More than 1000 instances would be needed" in plan.reason
    assert {"faster-artifact", "smaller-rate"} <= {each.kind for each in plan.would}


@pytest.mark.slow
def test_a_fixed_number_of_instances_may_be_beyond_a_thousand():
    plan = optcli.plan(curve="100ms", rate_per_s=12_000, slo={"p95_ms": 500}, instances=1500)
    assert plan.outcome == "kept"
    assert plan.recommended.utilisation == pytest.approx(0.8)
