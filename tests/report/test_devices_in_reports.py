"""Reports of several devices: a table each, nothing compared over two of them, nothing said twice."""

from __future__ import annotations

import csv
import io
import json

from example import FLUCTUATING, latency, report, variant, verdict
from example import both as rows_of
from report_forms import markdown, page, text

from optcli.report import changes, csv_text
from optcli.results import DeviceReport, DeviceVariant, Report

EDGE = {
    "cpu": {"model": "Edge CPU", "machine": "x86_64", "flags": ["avx2"]},
    "cores": 4,
    "system": "Linux 6.1",
    "python": "3.11.2",
    "versions": {"onnxruntime": "1.20.0"},
    "gpu_models": [{"name": "Orin", "driver_version": "540.3"}],
    "machine": {"identity": "edge"},
}
PROTOCOL = {
    **report().protocol,
    "conditions": {
        "before": {"governor": "performance", "temperature_c": 41.2},
        "after": {"temperature_c": 55.8, "gpus": [{"temperature.gpu": "47"}]},
    },
}


def of_device(p50, times, name="onnx", verdicts=()):
    rows = [row.model_copy(update={"device": "edge"}) for row in rows_of(p50, times)]
    return DeviceVariant(
        status="built",
        runner={"name": "onnxruntime", "precision": "fp32", "threads": 4},
        latency=tuple(rows),
        verdicts=tuple(verdicts),
    )


def two_devices(**options):
    here = report(
        {
            "eager": variant(2_000_000, rows_of(2.0, 1), runtime="torch"),
            "onnx": variant(2_000_000, rows_of(1.0, 2.0), verdicts=[verdict("speed-up")]),
        },
        recommended="onnx",
        recommendation="Serve onnx: 2 times as fast.",
    )
    slow = verdict("speed-up", "reject", blocking=False, reason="does not pay: 0.9 times as fast")
    edge = DeviceReport(
        environment=EDGE,
        recommended=None,
        recommendation="Nothing beats eager for certain.",
        exit_code=0,
        protocol=PROTOCOL,
        variants={"eager": of_device(9.0, 1), "onnx": of_device(10.0, 0.9, verdicts=[slow])},
    )
    return here.model_copy(
        update={
            "device": "here",
            "devices": {"edge": edge},
            "exit_code": 0,
            "exit_reason": "on here: onnx is accepted; on edge: no variant is recommended",
            **options,
        }
    )


def test_a_device_alone_is_a_report_of_its_own():
    whole = two_devices()
    edge = whole.on("edge")
    assert (edge.device, edge.devices, edge.environment) == ("edge", {}, EDGE)
    assert edge.variants["onnx"].latency[0].p50_ms.value == 10.0
    assert edge.variants["onnx"].artifact == whole.variants["onnx"].artifact
    assert [each.device for each in whole.by_device] == ["here", "edge"]
    assert whole.on("here") == whole.by_device[0]
    assert whole.by_device[0].variants == whole.variants


def test_it_comes_back_and_old_readers_see_the_first_device_alone(tmp_path):
    whole = two_devices()
    (tmp_path / "report.json").write_text(whole.to_json())
    assert Report.load(tmp_path / "report.json") == whole
    record = json.loads(whole.to_json())
    del record["devices"], record["device"]  # what an older optcli leaves out of the way
    assert Report.model_validate(record).variants == whole.variants


def test_the_terminal_has_a_table_for_each_device_and_one_ending():
    said = text(two_devices())
    order = [
        said.index(part)
        for part in (
            "Batch size 1 on here",
            "Batch size 1 on edge",
            "onnx: speed-up: does not pay: 0.9 times as fast",
            "On here: Serve onnx: 2 times as fast.",
            "On edge: Nothing beats eager for certain.",
            "exit 0: on here: onnx is accepted; on edge: no variant is recommended",
        )
    ]
    assert order == sorted(order)
    assert said.count("exit 0:") == 1
    assert said.count("A call hands the inputs over") == 1, "what holds for all is said once"


def test_a_doubt_is_told_of_each_device_that_it_holds_for():
    doubted = [latency(2.0, 1, flags=(FLUCTUATING,))]
    whole = two_devices()
    here = whole.variants["eager"].model_copy(update={"latency": tuple(doubted)})
    there = whole.devices["edge"].variants["eager"].model_copy(update={"latency": tuple(doubted)})
    edge = whole.devices["edge"].model_copy(
        update={"variants": {**whole.devices["edge"].variants, "eager": there}}
    )
    whole = whole.model_copy(
        update={"variants": {**whole.variants, "eager": here}, "devices": {"edge": edge}}
    )
    assert text(whole).count("fluctuating") == 2


def test_the_device_is_described():
    (line,) = [each for each in text(two_devices()).splitlines() if each.startswith("  edge: ")]
    assert line == (
        "  edge: Edge CPU, 4 cores, Linux 6.1; Orin, driver 540.3; governor performance; 41 to 56 °C;"
        " GPU 47 °C; python 3.11.2, onnxruntime 1.20.0."
    )


def test_accuracy_that_was_judged_with_other_instructions_is_told():
    whole = two_devices()
    judged = report().variants["onnx"].accuracy.model_copy(update={"isa": "avx512_vnni"})
    onnx = whole.variants["onnx"].model_copy(update={"accuracy": judged})
    whole = whole.model_copy(update={"variants": {**whole.variants, "onnx": onnx}})
    told = "Accuracy was judged on a processor with avx512_vnni; edge has avx2"
    assert told in text(whole)
    assert told.replace("_", "\\_") in markdown(whole)


def test_markdown_and_html_have_them_too():
    document, shown = markdown(two_devices()), page(two_devices())
    for size in (1, 8):
        for device in ("here", "edge"):
            assert f"### Batch size {size} on {device}" in document
    assert document.count("exit 0:") == 1
    assert "<h2>Batch size 1 on here</h2>" in shown
    assert "<h2>The machine on edge</h2>" in shown
    assert shown.count("Nothing beats eager for certain.") == 1, "below the answer"


def test_csv_has_every_row_with_its_device():
    rows = list(csv.DictReader(io.StringIO(csv_text(two_devices()))))
    assert [(row["device"], row["variant"], row["batch_size"]) for row in rows] == [
        (device, name, size)
        for device in ("here", "edge")
        for name in ("eager", "onnx")
        for size in ("1", "8")
    ]
    assert {row["speedup"] for row in rows if row["device"] == "edge"} == {"1.0", "0.9"}


def test_reports_are_compared_device_by_device():
    found = changes.compare_devices(("old", two_devices()), ("new", two_devices()))
    assert [(each.before.label, each.after.label) for each in found] == [
        ("old on here", "new on here"),
        ("old on edge", "new on edge"),
    ]
    assert found[1].variants[1].latency[0].p50.before.value == 10.0
    (alone,) = changes.compare_devices(("old", report()), ("new", two_devices()))
    assert alone.after.label == "new"


def test_a_report_without_devices_names_none():
    plain = report()
    assert plain.by_device == (plain,)
    assert " on here" not in text(plain)
    assert "device" not in {row.device for each in plain.variants.values() for row in each.latency}
