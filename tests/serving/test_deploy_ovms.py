"""A folder for OpenVINO Model Server: its config.json by the documented form, and its model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_variants import IMAGE, onnx_model, variant

import optcli
from optcli.artifact import Format
from optcli.errors import InputError
from optcli.results import Report
from optcli.serving import deploy as deploying
from optcli.serving.targets import Deployment, DeployOptions
from optcli.serving.targets.ovms import Ovms

pytestmark = pytest.mark.usefixtures("hurried_plans")

# Keys and types of a model in src/schema.cpp of openvinotoolkit/model_server, as far as optcli writes.
DOCUMENTED = {
    "name": str,
    "base_path": str,
    "target_device": str,
    "nireq": int,
    "plugin_config": dict,
}


@pytest.fixture(scope="module")
def plan():
    asked = {"curve": "10ms", "rate_per_s": 150, "slo": {"p95_ms": 60}, "batch": 1}
    return optcli.plan(**asked, instances=2, instances_per_machine=2)


@pytest.fixture
def built(tmp_path):
    onnx_model(tmp_path / "model", {"image": ["batch", 3, 4, 4]})
    options = {"name": "openvino", "threads": 2, "hint": "throughput", "pin_threads": False}
    return variant(tmp_path / "model", Format.ONNX, IMAGE, runner=options)


@pytest.mark.slow
def test_the_folder_has_the_documented_form_and_openvino_takes_its_settings(
    tmp_path, built, plan, monkeypatch
):
    import openvino

    monkeypatch.setattr(deploying, "open_built", lambda *_, **__: built)
    (tmp_path / "plan.json").write_text(plan.to_json())
    out = tmp_path / "out"
    deployed = deploying.deploy(
        "small",
        Report.model_construct(),
        tmp_path / "report.json",
        out,
        engine="ovms",
        plan=tmp_path / "plan.json",
    )
    assert {"config.json", "small/1/model.onnx", "golden-request.json"} <= set(deployed.files)
    (model,) = json.loads((out / "config.json").read_text())["model_config_list"]
    settings = model["config"]
    assert {name: type(value) for name, value in settings.items()} == DOCUMENTED
    assert all(isinstance(value, str | bool | int) for value in settings["plugin_config"].values())
    assert settings["nireq"] == 2
    said = settings["plugin_config"]
    assert (said["NUM_STREAMS"], said["INFERENCE_NUM_THREADS"]) == (2, 4)
    # Everything else is what the runner opens the model with.
    shared = {"NUM_STREAMS": 2, "INFERENCE_NUM_THREADS": 4}
    assert said == {**built.runner.session(), **shared}
    folder = out / settings["base_path"] / "1"
    compiled = openvino.Core().compile_model(str(folder / "model.onnx"), "CPU", said)
    assert compiled.get_property("NUM_STREAMS") == 2
    assert "openvino/model_server" in deployed.commands[0]
    assert deploying.document(deployed).title == "small for OpenVINO Model Server"


def test_batches_and_other_runners_are_refused(tmp_path):
    target = Ovms(DeployOptions())
    with pytest.raises(InputError, match="cannot run the format onnx in the runner onnxruntime"):
        target.take(variant(tmp_path, Format.ONNX, IMAGE))
    with pytest.raises(InputError, match="OpenVINO Model Server computes each request by itself"):
        optcli.plan(curve="6ms+1ms*b", rate_per_s=9, slo={"p95_ms": 60}, batch=4, target="ovms")


def test_what_the_server_does_otherwise_is_said(tmp_path, built, plan):
    from dataclasses import replace

    from optcli.serving.deploy.interface import Interface

    built = replace(built, effective={**built.effective, "shapes": "static"})
    several = plan.recommended.model_copy(update={"machines": 2, "instances": 4})
    asked = plan.model_copy(update={"recommended": several})
    deployment = Deployment("small", built, Report.model_construct(), Path(), Interface((), ()), asked)
    notes = " / ".join(Ovms(DeployOptions()).write(tmp_path / "out", deployment).notes)
    for said in ("refuses no request", "static shapes", "2 machines"):
        assert said in notes


def test_a_variant_that_was_measured_on_another_device_is_refused(tmp_path):
    options = {"name": "openvino", "threads": 2, "device": "GPU.1"}
    built = variant(tmp_path / "model", Format.ONNX, IMAGE, runner=options)
    with pytest.raises(InputError, match=r"measured on GPU\.1, and the folder is written for the CPU"):
        Ovms(DeployOptions()).take(built)
