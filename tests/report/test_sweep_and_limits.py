"""What a report says of a batch sweep, and of how near variants come to the machine's limit."""

from __future__ import annotations

import csv
import io

import pytest
from example import report
from report_forms import markdown, text

from optcli.report import csv_text
from optcli.report.sweep import sentences
from optcli.results import Budget, Estimate, Operations, Share, Sweep, SweepFit, SweepPoint, flags


def estimate(value, spread=0.02):
    return Estimate(value=value, low=value * (1 - spread), high=value * (1 + spread))


def point(size, p99=True, spread=0.02, **more):
    return SweepPoint(
        batch_size=size,
        p50_ms=estimate(4.0 + size),
        p99_ms=estimate(6.0 + size) if p99 else None,
        throughput_per_s=1000 * size / (4 + size),
        samples=400,
        spread=spread,
        **more,
    )


def fit(residual=0.01, linear=True):
    line = {"fixed_ms": estimate(4.0), "per_image_ms": estimate(1.0)}
    return SweepFit(**line, largest_residual=residual, linear=linear)


SWEPT = Sweep(
    points=(point(1, spread=0.25), point(2), point(4, p99=False)),
    fit=fit(),
    budget=Budget(
        p99_ms=50, batch_size=2, throughput_per_s=333, sentence="within 50 ms at p99: batch 2"
    ),
    stopped_because="throughput stopped growing",
    launches=5,
)


def changed(name, **update):
    found = report()
    variant = found.variants[name].model_copy(update=update)
    return found.model_copy(update={"variants": {**found.variants, name: variant}})


def test_a_sweep_is_a_block_below_the_table():
    lines = text(changed("onnx", sweep=SWEPT)).splitlines()
    lines = lines[lines.index("Batch sweep of onnx, 5 launches") :]
    assert lines[1].split() == ["batch", "p50", "ms", "p99", "ms", "images/s", "calls"]
    assert lines[3].split() == ["1", "5.00", "[4.90,", "5.10]", "7.00", "[6.86,", "7.14]", "200", "400"]
    assert lines[5].split()[-3:] == ["n/a", "500", "400"]
    assert lines[6:13] == [
        "  t(B) = 4.00 [3.92, 4.08] ms + B * 1.00 [0.980, 1.02] ms, largest residual 1.00 %",
        "  budget: within 50 ms at p99: batch 2",
        "  the bound is the upper end of p99's 95 % interval over 5 launches",
        "  one process made the calls one after the other, and optcli ran nothing beside it",
        "  the bound does not cover waiting in queues, other work or other machines",
        "  stopped: throughput stopped growing",
        "  fluctuating at batch 1",
    ]


def test_disturbed_points_are_named_by_their_fitness_and_not_by_a_flag():
    points = (
        point(1, flags=(flags.environment_not_fit(spread=0.4),)),
        point(2, spread=0.4, fit=False),
    )
    said = sentences(SWEPT.model_copy(update={"points": points}))
    assert said[-1] == (
        "other work disturbed batch 2: optcli draws no conclusion from it, and the line leaves it out"
    )
    assert not any("fluctuating" in each for each in said)


def test_no_line_where_there_is_none_or_it_says_nothing():
    crooked = SWEPT.model_copy(update={"fit": fit(residual=0.3, linear=False)})
    assert sentences(crooked)[0].startswith("non-linear: t(B) = ")
    assert "30.00 %" in sentences(crooked)[0]
    assert sentences(Sweep(stopped_because="it failed: no memory")) == ["stopped: it failed: no memory"]


def test_markdown_has_a_table_for_each_sweep():
    lines = markdown(changed("onnx", sweep=SWEPT)).splitlines()
    lines = lines[lines.index("### Batch sweep of onnx, 5 launches") :]
    assert "| 1 | 5.00 [4.90, 5.10] | 7.00 [6.86, 7.14] | 200 | 400 |" in lines


WORK = Operations(
    per_image=1_500_000_000,
    weight_bytes=2_000_000,
    input_output_bytes_per_image=600_000,
    counted_in="export_onnx",
    shares=(
        Share(
            batch_size=1,
            precision="fp32",
            bound="compute",
            achieved_per_s=1e11,
            limit_per_s=2e11,
            share=0.5,
            low=0.4,
            high=0.625,
        ),
        Share(
            batch_size=8,
            precision="fp32",
            bound="memory",
            achieved_per_s=3e11,
            limit_per_s=2e11,
            share=1.5,
            flags=(flags.over_the_peak(1.5),),
        ),
    ),
)


@pytest.mark.parametrize("width", [None, 100, 60])
def test_operations_and_shares_are_columns_of_every_layout(width):
    shown = text(changed("onnx", operations=WORK), width)
    assert "GOP" in shown
    assert "50 % (compute)" in shown
    assert "[40, 62]" in shown
    assert "150 % (memory)" in shown
    assert "1.50 of the peak cannot be" in " ".join(shown.split())
    assert "two for a multiply-accumulate" in " ".join(shown.split())
    assert "GOP" not in text(report(), width)


def test_operations_and_shares_in_markdown():
    page = markdown(changed("onnx", operations=WORK))
    assert "| speed-up | vs fp32 | GOP | of peak |" in page
    assert "| 1.50 | 50 % (compute) [40, 62] |" in page
    assert "| 12.0 | 150 % (memory) |" in page
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert len({line.count("|") for line in rows[:5]}) == 1


def test_operations_and_shares_in_csv():
    def cells(of):
        found = csv.DictReader(io.StringIO(csv_text(of)))
        return next(r for r in found if (r["variant"], r["batch_size"]) == ("onnx", "8"))

    row = cells(changed("onnx", operations=WORK))
    assert (row["operations"], row["moved_bytes"]) == ("12000000000", "6800000")
    assert (row["share_of_peak"], row["bound_by"]) == ("1.5", "memory")
    assert cells(report())["share_of_peak"] == ""
    first = next(csv.DictReader(io.StringIO(csv_text(changed("eager", operations=WORK)))))
    assert (first["share_of_peak_low"], first["share_of_peak_high"]) == ("0.4", "0.625")
