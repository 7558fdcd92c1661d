"""A report that an older optcli wrote, without what reports say today, is still read and shown."""

import json

import pytest
from example import report

from optcli.errors import UsageError
from optcli.report import changes, csv_text, html, markdown, text
from optcli.results import SCHEMA, Report

_NEW = {
    "report": ("recommendations", "exit_reason"),
    "latency": ("fit", "over_parent", "over_fp32"),
    "artifact": ("digest",),
    "accuracy": ("evaluated_on",),
    "verdict": ("over",),
}


def old(place):
    """The example as it would have been written before these keys were."""
    record = json.loads(report().to_json())
    without(record, "report")
    for variant in record["variants"].values():
        for row in variant["latency"]:
            without(row, "latency")
        for part in ("artifact", "accuracy"):
            if variant[part]:
                without(variant[part], part)
        for verdict in variant["verdicts"]:
            without(verdict, "verdict")
    path = place / "report.json"
    path.write_text(json.dumps(record))
    return Report.load(path)


def without(record, part):
    for key in _NEW[part]:
        del record[key]


def test_an_old_report_is_read_and_shown_in_every_form(tmp_path):
    found = old(tmp_path)
    assert found.recommended == "onnx-int8"
    assert found.recommendations == {}
    shown = text(found)
    assert "vs fp32" not in shown
    assert "exit 4" not in shown
    assert "Serve onnx-int8" in shown
    assert "5.85x [5.73, 5.97]" in shown
    for other in (markdown(found), csv_text(found), html.page(found, {})):
        assert "onnx-int8" in other


def test_an_old_report_is_compared_with_a_new_one(tmp_path):
    found = changes.compare(("old", old(tmp_path)), ("new", report()))
    assert {row.p50.outcome for each in found.variants for row in each.latency} == {"same artifact"}
    judged = [each.accuracy for each in found.variants if each.accuracy is not None]
    assert {each.outcome for each in judged} == {"unchanged"}


def changed(place, change):
    """The example's report on disk, changed."""
    record = json.loads(report().to_json())
    change(record)
    path = place / "report.json"
    path.write_text(json.dumps(record))
    return path


def test_flags_stand_with_the_rows_and_not_with_the_runner(tmp_path):
    def change(record):
        runner = {"name": "onnxruntime", "flags": ["5 of 10 operators run on the CPU"]}
        record["variants"]["onnx"].update(runner=runner)

    found = Report.load(changed(tmp_path, change))
    assert found.schema_version == SCHEMA == 2
    assert found.variants["onnx"].runner == {"name": "onnxruntime"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda record: record.update(schema=3), "has schema 3, this optcli reads 2"),
        (lambda record: record.update(schema=1), "has schema 1, this optcli reads 2"),
        (lambda record: record["variants"]["onnx"].update(flags=[5]), "variants.onnx.flags.0"),
        (lambda record: record["variants"]["onnx"].update(flags=5), "variants.onnx.flags"),
    ],
)
def test_other_reports_are_refused(tmp_path, change, message):
    with pytest.raises(UsageError) as caught:
        Report.load(changed(tmp_path, change))
    assert message in str(caught.value)
