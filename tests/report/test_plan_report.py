"""A plan in the terminal and as a page: its parts, and what is left out where there is none."""

from __future__ import annotations

import pytest

from optcli.report import html, terminal
from optcli.report.plan import document
from optcli.results.plan import (
    BatchPoint,
    Configuration,
    ModeAdvice,
    Plan,
    PlanCurve,
    PlanNote,
    RatePoint,
    WaitPoint,
)

CONFIGURATION = Configuration(
    batch=8,
    wait_ms=10,
    instances=2,
    concurrency=1,
    machines=2,
    instances_per_machine=1,
    semantics="oldest-age",
    p50_ms=27.5,
    p95_ms=39.5,
    p99_ms=44.0,
    p95_interval_ms=(39.2, 39.8),
    utilisation=0.475,
    utilisation_with_headroom=0.57,
    max_rate_per_s=397,
    capacity_per_s=421,
    rate_at_utilisation_per_s=294.7,
    sum_ms=48,
    queue_cap=32,
    timeout_ms=82,
    max_in_flight=48,
    all_in_time=40,
)


def plan(**options):
    given = {
        "name": "<api>",
        "outcome": "kept",
        "sentence": "Serve it.",
        "reason": "Because.",
        "slo_ms": {"p95": 120.0},
        "rate_per_s": 200.0,
        "planned_rate_per_s": 200.0,
        "headroom": 0.2,
        "utilisation": 0.7,
        "seed": 0,
        "curve": PlanCurve(source="the curve 6ms+4ms*b", fixed_ms=6, per_image_ms=4),
        "recommended": CONFIGURATION,
        "mode": ModeAdvice(mode="real-time", deciding={"slo_ms": 120}, reason="none may wait"),
        "by_batch": (
            BatchPoint(batch=1, wait_ms=0, call_ms=10, latency_ms=None, capacity_per_s=200, kept=False),
            BatchPoint(batch=8, wait_ms=10, call_ms=38, latency_ms=39.5, capacity_per_s=421, kept=True),
        ),
        "by_rate": (
            RatePoint(rate_per_s=100, latency_ms=30, utilisation=0.24),
            RatePoint(rate_per_s=200, latency_ms=39.5, utilisation=0.475),
            RatePoint(rate_per_s=450, latency_ms=None, utilisation=1.07),
        ),
    }
    return Plan(**{**given, **options})


def plan_text(plan):
    return terminal.text(document(plan))


def plan_page(plan):
    return html.html(document(plan))


def test_the_terminal_shows_the_operating_curve_with_the_promise_in_it():
    lines = plan_text(plan()).splitlines()
    assert "p95 against the rate, promised 120 ms" in lines
    chosen = next(line for line in lines if line.endswith("planned"))
    assert "39.5 ms" in chosen
    assert "#|" not in chosen
    assert "|" in chosen, "the promise"
    grown = next(line for line in lines if line.strip().startswith("450/s"))
    assert "grows" in grown
    assert any(line.endswith("keeps it, chosen") for line in lines)
    assert "instances     2" in lines
    assert "in flight     at most 48, of which 32 wait; 40 would all be in time" in lines
    assert lines[-2:] == ["Serve it.", "Because."], "the answer comes last"


def test_the_page_draws_both_curves_and_escapes_names():
    page = plan_page(plan())
    assert "&lt;api&gt;" in page
    assert "<api>" not in page
    assert page.count("promised 120 ms") == 5, "a heading, two pictures, each for wide pages and phones"
    assert "At batch 1 the queue grows without bound" in page
    assert "<script" not in page


@pytest.mark.parametrize("outcome", ["not-kept", "inconclusive"])
def test_a_plan_without_a_configuration_says_what_would_keep_the_promise(outcome):
    bare = plan(
        outcome=outcome,
        recommended=None,
        by_batch=(),
        by_rate=(),
        notes=(PlanNote(kind="environment-not-fit", text="environment not fit: all"),),
    )
    said = plan_text(bare)
    assert "Notes\n  environment not fit: all" in said
    page = plan_page(bare)
    assert "environment not fit" in page
    assert ("nothing keeps the promise" in page) == (outcome == "not-kept")


def test_every_part_stands_in_both_forms():
    whole = plan(
        by_wait=(
            WaitPoint(
                wait_ms=0,
                p50_ms=None,
                p95_ms=None,
                p99_ms=None,
                mean_batch=1,
                busy=1,
                max_rate_per_s=173,
                kept=False,
            ),
        ),
    )
    for said in (plan_text(whole), plan_page(whole)):
        assert "Waits" in said
        assert "breaks it" in said
