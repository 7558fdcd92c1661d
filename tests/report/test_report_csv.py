"""CSV of a report: what is in the report comes back, one row per variant and batch size."""

from __future__ import annotations

import csv
import io

from example import report

from optcli.report import csv_text


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
    for name, variant in found.variants.items():
        for latency in variant.latency:
            row = rows[name, str(latency.batch_size)]
            assert float(row["p50_ms"]) == latency.p50_ms.value
            assert float(row["p50_low_ms"]) == latency.p50_ms.low
            assert float(row["p50_high_ms"]) == latency.p50_ms.high
            assert float(row["speedup"]) == latency.speedup.value
            assert row["p99_ms"] == ("" if latency.p99_ms is None else str(latency.p99_ms.value))
            assert int(row["size_bytes"]) == variant.artifact.size_bytes
            assert float(row["accuracy"]) == variant.accuracy.value


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
