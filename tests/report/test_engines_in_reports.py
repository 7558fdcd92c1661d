"""Engines in reports: what they compute in, who says so, and their layers."""

import pytest
from example import latency, report, variant
from report_forms import markdown, page, text

from optcli.report import engines
from optcli.report.notes import notes
from optcli.results import StepSummary

LAYER = {"name": "conv1", "type": "Conv", "precision": "int8", "tactic": "xmma", "reformat": False}
MOVED = {"name": "r", "type": "Reformat", "precision": "", "tactic": "", "reformat": True}


def built(engine, **facts):
    step = StepSummary(
        name="tensorrt_engine", key="key", status="built", facts={"engine": engine, **facts}
    )
    made = variant(900, [latency(0.5, 2.0)], runtime="tensorrt").model_copy(update={"steps": (step,)})
    return report({"eager": variant(1000, [latency(1, 1)], runtime="torch"), "trt": made})


@pytest.fixture
def inspected():
    engine = {"inspected": {"reformats": 1, "layers": [MOVED, LAYER]}}
    said = "you asked for INT8; 31 of 58 convolutions run in it"
    return built(engine, expectation=said, expectation_by="the engine's inspector")


SAID = (
    "trt: you asked for INT8; 31 of 58 convolutions run in it (says the engine's inspector); "
    "1 of its 2 layers only reformat tensors"
)


def test_what_an_engine_computes_in_is_said_in_every_form(inspected):
    assert notes(inspected)["Engines"] == [SAID]
    assert SAID in " ".join(text(inspected, 200).split())
    assert f"- {SAID}" in markdown(inspected)


def test_its_layers_stand_in_the_page(inspected):
    rows = engines.layers(inspected.variants["trt"])
    assert rows == [("r", "Reformat", "?", "?"), ("conv1", "Conv", "int8", "xmma")]
    shown = page(inspected)
    assert "xmma" in shown
    assert "tactic" in shown


def test_one_that_could_not_be_inspected_has_no_layers():
    found = built({"product": "tensorrt_rtx"}, expectation="15 of 15", expectation_by="the model")
    assert notes(found)["Engines"] == ["trt: 15 of 15 (says the model)"]
    assert engines.layers(found.variants["trt"]) == []


def test_other_variants_say_nothing():
    found = report({"eager": variant(1000, [latency(1, 1)], runtime="torch")})
    assert "Engines" not in notes(found)
    assert "Engines" not in text(found)
