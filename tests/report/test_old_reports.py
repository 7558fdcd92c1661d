"""A report that an older optcli wrote, without what reports say today, is still read and shown."""

import json

import pytest
from example import report

from optcli.errors import UsageError
from optcli.report import changes, csv_text, html, markdown, text
from optcli.results import SCHEMA, Report, flags

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


def of_schema_1(place, change=lambda record: None):
    """A report as optcli wrote it in schema 1, changed and on disk."""
    record = json.loads(report().to_json())
    record["schema"] = 1
    for variant in record["variants"].values():
        for row in variant["latency"]:
            row["flags"] = [flag["text"] for flag in row["flags"]]
    change(record)
    path = place / "report.json"
    path.write_text(json.dumps(record))
    return path


def test_a_report_of_schema_1_is_read_as_the_present_one(tmp_path):
    def change(record):
        runner = {"name": "onnxruntime", "flags": ["5 of 10 operators run on the CPU"]}
        record["variants"]["onnx"].update(flags=["no-gpu"], runner=runner)
        (row, *_) = record["variants"]["onnx"]["latency"]
        row["flags"] = ["environment not fit (IQR/median 41 %)", "said by nobody"]
        del row["fit"]

    found = Report.load(of_schema_1(tmp_path, change))
    assert found.schema_version == SCHEMA == 2
    onnx = found.variants["onnx"]
    assert onnx.flags == (flags.no_gpu(),)
    assert onnx.runner == {"name": "onnxruntime"}, "its flags stand with the rows"
    doubts = (flags.environment_not_fit(spread=0.41), flags.other("said by nobody"))
    assert (onnx.latency[0].flags, onnx.latency[0].fit) == (doubts, False)
    again = json.loads(found.to_json())
    assert again["schema"] == 2
    assert again["variants"]["onnx"]["latency"][0]["flags"][0] == {
        "kind": "environment-not-fit",
        "figures": {"spread": 0.41},
        "text": "environment not fit (IQR/median 41 %)",
    }


def test_a_report_of_schema_1_says_what_it_said(tmp_path):
    assert Report.load(of_schema_1(tmp_path)) == report()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda record: record.update(schema=3), "has schema 3, this optcli reads 1 and 2"),
        (lambda record: record["variants"]["onnx"].update(flags=[5]), "variants.onnx.flags.0"),
        (lambda record: record["variants"]["onnx"].update(flags=5), "variants.onnx.flags"),
    ],
)
def test_other_reports_are_refused(tmp_path, change, message):
    with pytest.raises(UsageError) as caught:
        Report.load(of_schema_1(tmp_path, change))
    assert message in str(caught.value)
