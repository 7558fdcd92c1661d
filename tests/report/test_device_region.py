"""Times on a GPU in reports: a column where there are any, never taken for whole calls."""

import csv
import io

import pytest
from example import accuracy, latency, report, variant
from report_forms import details, markdown, results, text

from optcli.report import csv_text
from optcli.report.changes import compare
from optcli.report.recommendation import recommend
from optcli.results import Operations, Report, flags


def on_device(p50, speedup, batch_size=1, **options):
    return latency(p50, speedup, batch_size, **options).model_copy(update={"region": "device"})


def example(device_ms=0.125):
    # The device's rows come first on purpose: nothing may rely on an order.
    rows = [on_device(device_ms, 8.0), latency(0.5, 2.0), latency(2.0, 2.0, 8), on_device(0.5, 8.0, 8)]
    return report(
        {
            "eager": variant(1000, [latency(1, 1), latency(4, 1, 8)], accuracy(), runtime="torch"),
            "engine": variant(900, rows, accuracy(), runtime="tensorrt"),
        }
    )


@pytest.mark.parametrize("width", [None, 100, 80])
def test_the_table_has_a_column_for_it(width):
    shown = text(example(), width)
    assert "device" in shown
    assert "0.125" in shown
    assert "by the GPU's own events" in " ".join(shown.split())
    lines = [line for line in shown.splitlines() if line.startswith("engine")]
    assert len(lines) == 2  # one for each batch size
    assert all("0.500" in line or "2.00" in line for line in lines)


def test_without_such_times_there_is_no_column():
    found = report({"eager": variant(1000, [latency(1, 1)], runtime="torch")})
    assert "device" not in text(found)
    assert "device" not in markdown(found)


def test_markdown_and_html_have_it_too():
    assert "| device ms |" in markdown(example())
    assert "0.125 [" in markdown(example())
    assert "device ms" in results(example())
    assert "0.125" in results(example())
    assert details(example()).count(">device<") == 2


def test_json_and_csv_name_the_region():
    again = Report.model_validate_json(example().to_json())
    assert [row.region for row in again.variants["engine"].latency].count("device") == 2
    rows = list(csv.DictReader(io.StringIO(csv_text(example()))))
    found = {(row["variant"], row["batch_size"], row["region"]): float(row["p50_ms"]) for row in rows}
    assert found["engine", "1", "host"] == 0.5
    assert found["engine", "1", "device"] == 0.125


def test_whole_calls_are_what_is_recommended():
    advice = recommend(example().variants, "eager", lambda *_: None)
    sentence = advice.sentence
    assert advice.recommended == "engine"
    assert "2.00 times" in sentence
    assert "8.00" not in sentence


def test_a_comparison_has_both_regions_apart():
    found = compare(("before", example()), ("after", example(device_ms=0.25)))
    rows = {(row.batch_size, row.region): row for row in found.variants[1].latency}
    assert rows[1, "host"].p50.ratio.value == 1.0
    assert rows[1, "device"].p50.ratio.value == 2.0
    assert rows[1, "device"].p50.outcome == "same artifact"


def test_doubts_say_which_region_they_are_of():
    row = on_device(0.1, 2.0, flags=(flags.fluctuating(0.14),))
    found = report({"engine": variant(900, [latency(0.5, 2.0), row])}, baseline="engine")
    assert "engine on the device" in text(found)


def test_operations_are_of_whole_calls():
    found = example()
    work = Operations(
        per_image=10, weight_bytes=1, input_output_bytes_per_image=1, counted_in="export_onnx"
    )
    engine = found.variants["engine"].model_copy(update={"operations": work})
    counted = found.model_copy(update={"variants": {**found.variants, "engine": engine}})
    rows = csv.DictReader(io.StringIO(csv_text(counted)))
    cells = {(row["batch_size"], row["region"]): row["operations"] for row in rows if row["operations"]}
    assert cells == {("1", "host"): "10", ("8", "host"): "80"}
