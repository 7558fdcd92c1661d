"""A report of another schema or form is refused, with the place of what is wrong."""

import json

import pytest
from example import report

from optcli.errors import UsageError
from optcli.results import Report


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda record: record.update(schema=1), "has schema 1, this optcli reads 2"),
        (lambda record: record["variants"]["onnx"].update(flags=[5]), "variants.onnx.flags.0"),
        (lambda record: record["variants"]["onnx"].update(flags=5), "variants.onnx.flags"),
    ],
)
def test_other_reports_are_refused(tmp_path, change, message):
    record = json.loads(report().to_json())
    change(record)
    path = tmp_path / "report.json"
    path.write_text(json.dumps(record))
    with pytest.raises(UsageError) as caught:
        Report.load(path)
    assert message in str(caught.value)
