"""CSV of a report: what is in the report comes back, one row per variant and batch size."""

from __future__ import annotations

import csv
import io

from example import NOW, latency, report, variant

from optcli.report import csv_text
from optcli.report.changes import compare
from optcli.report.csv_text import csv_of_changes
from optcli.results import flags


def read():
    return list(csv.DictReader(io.StringIO(csv_text(report()))))


def test_every_variant_and_batch_size_has_a_row():
    assert [(row["variant"], row["batch_size"]) for row in read()] == [
        *(
            (name, size)
            for name in ("eager", "onnx", "onnx-int8", "pruned-onnx")
            for size in ("1", "8")
        ),
        ("aoti", ""),
        ("trt", ""),
    ]


def test_figures_come_back_exactly():
    found, rows = report(), {(row["variant"], row["batch_size"]): row for row in read()}
    for name, built in found.variants.items():
        for timed in built.latency:
            row = rows[name, str(timed.batch_size)]
            assert float(row["p50_ms"]) == timed.p50_ms.value
            assert float(row["p50_low_ms"]) == timed.p50_ms.low
            assert float(row["p50_high_ms"]) == timed.p50_ms.high
            assert float(row["speedup"]) == timed.speedup.value
            assert row["p99_ms"] == ("" if timed.p99_ms is None else str(timed.p99_ms.value))
            assert int(row["size_bytes"]) == built.artifact.size_bytes
            assert float(row["accuracy"]) == built.accuracy.value


def test_verdicts_and_reasons():
    rows = {row["variant"]: row for row in read()}
    assert (rows["pruned-onnx"]["verdict"], rows["pruned-onnx"]["outcome"]) == (
        "reject: accuracy",
        "reject",
    )
    assert rows["eager"]["verdict"] == "baseline"
    assert (rows["aoti"]["status"], rows["aoti"]["verdict"]) == ("failed", "")
    assert rows["trt"]["reason"] == "no NVIDIA GPU was found"
    flagged = next(row for row in read() if row["variant"] == "onnx-int8")
    assert flagged["flags"] == "fluctuating (IQR/median 14 %)"


def _of(name, unit=""):
    return [f"{name}{unit}", f"{name}_low{unit}", f"{name}_high{unit}"]


def test_names_and_their_order_are_what_people_read():
    first = csv_text(report()).splitlines()[0].split(",")
    assert first == [
        *("recipe", "variant", "status", "verdict", "outcome", "runtime", "precision", "format"),
        *("size_bytes", "build_s", "batch_size", "region", "threads", "launches", "samples"),
        *(name for percentile in ("p50", "p90", "p95", "p99") for name in _of(percentile, "_ms")),
        *("mean_ms", "throughput_per_s", *_of("speedup")),
        *("over_fp32_variant", *_of("speedup_over_fp32")),
        *("over_parent_variant", *_of("speedup_over_parent")),
        *("cpu_ms", "import_ms", "load_ms", "first_ms", "peak_memory_bytes", "measured_at", "fit"),
        *("flags", "operations", "moved_bytes", "share_of_peak", "bound_by"),
        *("share_of_peak_low", "share_of_peak_high", "metric", "accuracy", "accuracy_samples"),
        *(*_of("accuracy_drop"), "sqnr_db", "reason", "not_measured", "device"),
    ]


def test_a_comparison_has_both_sides_of_every_percentile():
    both = [compare(("before", report()), ("after", report()))]
    first, *lines = csv.reader(io.StringIO(csv_of_changes(both)))
    percentiles = [
        name
        for p in ("p50", "p95", "p99")
        for name in (
            *_of(f"{p}_before", "_ms"),
            *_of(f"{p}_after", "_ms"),
            *_of(f"{p}_ratio"),
            f"{p}_outcome",
        )
    ]
    assert first == [
        *("before", "after", "comparable", "variant", "variant_before", "same_artifact"),
        *("batch_size", "region", *percentiles, "size_bytes_before", "size_bytes", "metric"),
        *("accuracy_before", "accuracy", *_of("accuracy_difference"), "accuracy_outcome", "settings"),
    ]
    row = dict(zip(first, lines[0], strict=True))
    assert (row["before"], row["after"], row["variant"], row["region"]) == (
        "before",
        "after",
        "eager",
        "host",
    )
    assert (row["p99_outcome"], row["p95_before_ms"]) == ("same artifact", "2.892")


def test_nothing_is_an_empty_file():
    assert csv_of_changes([]) == ""


def test_what_is_no_figure_of_the_table_is_there_too():
    kept = variant(1000, [latency(2, 1)], flags=(flags.no_gpu(),), build_s=1.5)
    (row,) = csv.DictReader(io.StringIO(csv_text(report({"eager": kept}))))
    assert {name: row[name] for name in ("recipe", "format", "build_s", "threads", "launches")} == {
        "recipe": "digits",
        "format": "onnx",
        "build_s": "1.5",
        "threads": "2",
        "launches": "1",
    }
    assert (row["not_measured"], row["measured_at"], row["fit"]) == ("no-gpu", NOW, "True")
    assert (row["samples"], row["region"], row["mean_ms"]) == ("368", "host", "2.0")


def test_what_was_not_built_has_no_verdict():
    failed = variant(1000, [], status="failed", reason="it aborted")
    (row,) = csv.DictReader(io.StringIO(csv_text(report({"eager": failed}))))
    assert (row["verdict"], row["outcome"], row["reason"]) == ("", "", "it aborted")
