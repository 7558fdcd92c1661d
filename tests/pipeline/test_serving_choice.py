"""The plan in the report of a build: from `slo.rate_per_s`, cheap, and never a reason to fail."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from report_forms import markdown, page, text

from optcli.pipeline import building
from optcli.report.notes import serving_line
from optcli.results import Estimate, Latency, Report, Sweep, SweepPoint, VariantReport
from optcli.settings.slo import SloSettings


def point(size, ms, **more):
    return SweepPoint(
        batch_size=size,
        p50_ms=Estimate(value=ms),
        throughput_per_s=1000 * size / ms,
        samples=100,
        **more,
    )


def report(*points):
    row = Latency(
        batch_size=1,
        threads=2,
        samples=100,
        p50_ms=Estimate(value=10.0),
        mean_ms=10.0,
        throughput_per_s=100.0,
        measured_at="2026-03-01T12:00:00+00:00",
    )
    points = points or (point(1, 10.0), point(2, 14.0), point(4, 22.0), point(8, 38.0))
    swept = Sweep(points=points, stopped_because="8 is the largest wanted")
    return Report.model_validate(
        {
            "schema": 2,
            "recipe": {"name": "tiny", "path": "tiny.yaml", "digest": "d"},
            "environment": {},
            "baseline": "eager",
            "recommended": "eager",
            "recommendation": "Serve eager.",
            "started": "2026-03-01T12:00:00+00:00",
            "finished": "2026-03-01T12:00:00+00:00",
            "exit_code": 0,
            "variants": {"eager": VariantReport(status="built", latency=(row,), sweep=swept)},
        }
    )


def chosen(tmp_path, built, **slo):
    recipe = SimpleNamespace(slo=SloSettings(**slo) if slo else None, seed=0)
    return building.chosen(recipe, built, tmp_path)


def test_the_report_says_how_to_serve_at_the_promised_rate(tmp_path):
    choice = chosen(tmp_path, report(), p95_ms=120, rate_per_s=200)
    assert choice.kept
    assert (choice.batch, choice.wait_ms, choice.instances) == (8, 10, 2)
    assert choice.figures_ms["p95"] == pytest.approx(39.5, rel=0.03)
    built = report().model_copy(update={"serving": choice})
    line = serving_line(built)
    assert line.startswith("Serving eager at 200 requests a second: batches of at most 8, waiting")
    assert "2 instances with 20 % headroom, p95 39" in line
    assert "`optcli plan tiny.yaml --variant eager --rate 200 --slo p95=120ms` says more" in line
    begin = "Serving eager at 200 requests a second"
    assert begin in text(built)
    assert begin in markdown(built)
    assert begin in page(built)
    assert Report.model_validate_json(built.to_json()).serving == choice
    assert "pads" not in line


@pytest.mark.slow
def test_the_report_says_which_batches_the_server_pads(tmp_path):
    built = report(point(1, 10.0), point(8, 38.0))
    runner = {"shapes": "static", "compiled_batch_sizes": [1, 8]}
    eager = built.variants["eager"].model_copy(update={"runner": runner})
    built = built.model_copy(update={"variants": {"eager": eager}})
    choice = chosen(tmp_path, built, p95_ms=120, rate_per_s=200)
    assert (choice.batch, choice.padded_from) == (8, {8: 2})
    line = serving_line(built.model_copy(update={"serving": choice}))
    assert "(the server pads batches of 2 to 7 to 8)" in line


def test_a_promise_that_nothing_keeps_is_said(tmp_path):
    choice = chosen(tmp_path, report(), p99_ms=9, rate_per_s=200)
    assert not choice.kept
    line = serving_line(report().model_copy(update={"serving": choice}))
    assert "no configuration keeps p99 9 ms" in line


def test_a_busy_machine_plans_nothing(tmp_path):
    built = report(point(1, 10.0, fit=False), point(8, 38.0, fit=False))
    choice = chosen(tmp_path, built, p95_ms=120, rate_per_s=200)
    assert not choice.fit
    line = serving_line(report().model_copy(update={"serving": choice}))
    assert "measured on a busy machine" in line


@pytest.mark.parametrize("slo", [{}, {"p95_ms": 120}, {"rate_per_s": 200}])
def test_without_a_rate_or_a_percentile_there_is_no_line(tmp_path, slo):
    assert chosen(tmp_path, report(), **slo) is None
    assert serving_line(report()) == ""


def test_a_curve_that_cannot_be_planned_with_costs_the_line_alone(tmp_path):
    falling = report(point(1, 30.0), point(8, 10.0))
    assert chosen(tmp_path, falling, p95_ms=120, rate_per_s=200) is None
