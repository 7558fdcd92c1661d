"""What was found since a build stands in its report: the layers, the repair."""

from pathlib import Path

import pytest
from example import both, variant
from report_forms import page, text

from optcli.observer import Silent
from optcli.pipeline import report_files
from optcli.results import RecipeSummary, Report
from optcli.results.outcomes import LayerError, Layers

WORST = LayerError(
    tensor="t1",
    node="<conv_1>",
    operator="Conv",
    shape=(1, 8, 4, 4),
    kind="activation",
    own_db=3.25,
    sqnr_db=2.0,
    advice="{quantize_nncf: {ignored_names: [conv_1]}}",
)
LAYERS = Layers(rows=(WORST,), compared=12, samples=8)


@pytest.fixture
def built() -> Report:
    return Report(
        recipe=RecipeSummary(name="tiny", path="tiny.yaml", digest=""),
        environment={},
        baseline="eager",
        recommended=None,
        recommendation="",
        started="2026-03-01T12:00:00+00:00",
        finished="2026-03-01T12:01:00+00:00",
        exit_code=1,
        variants={"eager": variant(100, both(1, 1)), "int8": variant(30, both(0.5, 2))},
    )


def test_the_layers_stand_in_all_forms_of_the_report(tmp_path: Path, built: Report) -> None:
    report_files.write(tmp_path, built, report_files.Curves({}))
    report_files.add(tmp_path, {"int8": {"layers": LAYERS}, "gone": {"layers": LAYERS}}, Silent())
    after = Report.load(tmp_path / "report.json")
    assert after.variants["int8"].layers == LAYERS
    assert set(after.variants) == {"eager", "int8"}
    line = "int8: the error starts at <conv_1> (Conv, activation: 3.2 dB of signal to noise,"
    assert line in text(after)
    assert "try {quantize\\_nncf" in (tmp_path / "report.md").read_text()
    shown = (tmp_path / "report.html").read_text()
    assert "Where the error of int8 starts" in shown
    assert "&lt;conv_1&gt;" in shown
    assert "<conv_1>" not in shown


def test_an_equal_copy_has_no_layer_to_show(built: Report) -> None:
    same = WORST.model_copy(update={"own_db": None, "sqnr_db": None, "advice": ""})
    variants = dict(built.variants)
    layers = Layers(rows=(same,), compared=4, samples=8)
    variants["int8"] = variants["int8"].model_copy(update={"layers": layers})
    told = built.model_copy(update={"variants": variants})
    assert "int8: no layer adds an error, of 4 tensors" in text(told)
    assert "no layer adds an error, of 4 tensors" in page(told)


def test_what_cannot_be_compared_says_why(built: Report) -> None:
    variants = dict(built.variants)
    variants["int8"] = variants["int8"].model_copy(update={"layers": Layers(reason="no names")})
    told = built.model_copy(update={"variants": variants})
    assert "int8: no names" in text(told)
    assert "Where the error of int8" not in page(told)


def test_nothing_is_written_where_nothing_was_built(tmp_path: Path) -> None:
    report_files.add(tmp_path, {"int8": {"layers": LAYERS}}, Silent())
    assert list(tmp_path.iterdir()) == []
