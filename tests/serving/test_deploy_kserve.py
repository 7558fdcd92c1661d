"""Manifests for KServe: the fields are those of KServe's own types, and the figures those of the plan.

`kserve_fields.json` has the fields of KServe 0.21 with their types, as its Python package names them.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from small_variants import IMAGE, onnx_model, variant

import optcli
from optcli.artifact import Format
from optcli.errors import UsageError
from optcli.results import Report
from optcli.results.plan import Plan
from optcli.serving import deploy as deploying
from optcli.serving.deploy import instructions, model_configuration
from optcli.serving.deploy.backends import Backend
from optcli.serving.deploy.interface import Interface
from optcli.serving.deploy.model_configuration import ModelBatching, ServedModel
from optcli.serving.targets import DeployOptions, kserve

pytestmark = pytest.mark.usefixtures("hurried_plans")

FIELDS = json.loads(Path(__file__).with_name("kserve_fields.json").read_text())
# What KServe takes from Kubernetes, as far as optcli writes it.
FIELDS |= {
    "V1ObjectMeta": {"name": "str", "annotations": "dict(str, str)"},
    "V1Container": {"name": "str", "image": "str", "args": "list[str]", "env": "list[V1EnvVar]"},
    "V1EnvVar": {"name": "str", "value": "str"},
    "V1ResourceRequirements": {"requests": "dict(str, str)", "limits": "dict(str, str)"},
}
PLAIN = {"str": str, "int": int, "bool": bool}
URI = "pvc://models/digits"


@pytest.fixture(scope="module")
def plan() -> Plan:
    made = optcli.plan(
        curve="6ms+1ms*b",
        rate_per_s=700,
        slo={"p95_ms": 60},
        batch=8,
        instances=4,
        instances_per_machine=2,
    )
    assert made.recommended is not None
    assert made.recommended.machines == 2
    return made


def served(name: str = "Digits.v2", **backend: object) -> ServedModel:
    return ServedModel(
        name=name,
        inputs=(),
        interface=Interface((), (), golden="a sample", tolerance=0.001),
        backend=Backend("model.onnx", "onnxruntime_onnx", threads=3, **backend),  # type: ignore[arg-type]
        batching=ModelBatching(8),
        instances=2,
        wait_ms=1.0,
        queue=20,
        late_ms=None,
    )


def require_fields(kind: str, value: object, place: str) -> None:
    """Fail where a value is not of a type of KServe, by the names and types of its fields."""
    if kind in PLAIN:
        assert type(value) is PLAIN[kind], place
    elif kind.startswith("list["):
        assert isinstance(value, list), place
        for item in value:
            require_fields(kind[5:-1], item, place)
    elif kind == "dict(str, str)":
        assert isinstance(value, dict), place
        assert all(type(each) is str for pair in value.items() for each in pair), place
    else:
        assert isinstance(value, dict), place
        assert set(value) <= set(FIELDS[kind]), f"{place}: {set(value) - set(FIELDS[kind])}"
        for name, item in value.items():
            require_fields(FIELDS[kind][name], item, f"{place}.{name}")


def as_written(path: Path, manifest) -> dict:
    kserve._write_manifest(path, manifest)
    return YAML(typ="safe").load(path.read_text())


@pytest.mark.slow
def test_both_manifests_have_the_fields_of_kserve(tmp_path, plan):
    inference = as_written(tmp_path / "a.yaml", kserve.inference_of(served(device=0), plan, URI))
    runtime = as_written(tmp_path / "b.yaml", kserve.runtime_of(served(environment={"A": "b"})))
    require_fields("V1beta1InferenceService", inference, "InferenceService")
    require_fields("V1alpha1ServingRuntime", runtime, "ServingRuntime")
    assert inference["kind"] == "InferenceService"
    assert runtime["kind"] == "ServingRuntime"
    model = inference["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"] == "digits-v2-triton"
    (format,) = runtime["spec"]["supportedModelFormats"]
    assert model["modelFormat"] == {"name": format["name"], "version": format["version"]}
    assert model["storageUri"] == URI
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]
    assert model["resources"]["limits"]["nvidia.com/gpu"] == "1"
    with pytest.raises(AssertionError, match="replicas"):
        require_fields("V1beta1PredictorSpec", {"replicas": 1}, "predictor")


@pytest.mark.slow
def test_a_pod_is_a_machine_of_the_plan(plan):
    predictor = kserve.inference_of(served(), plan, URI)["spec"]["predictor"]
    assert (predictor["minReplicas"], predictor["maxReplicas"]) == (2, 2)
    resources = predictor["model"]["resources"]
    assert resources["requests"] == resources["limits"] == {"cpu": "6"}
    assert "the number of pods is fixed" in " ".join(kserve.notes_of(served()))


@pytest.mark.slow
def test_a_canary_gets_its_share_of_the_live_traffic(tmp_path, plan):
    manifest = as_written(tmp_path / "a.yaml", kserve.inference_of(served(), plan, URI, 0.1))
    require_fields("V1beta1InferenceService", manifest, "InferenceService")
    assert manifest["spec"]["predictor"]["canaryTrafficPercent"] == 10
    # The other mode of KServe splits no traffic.
    mode = manifest["metadata"]["annotations"]["serving.kserve.io/deploymentMode"]
    assert mode == "Serverless"
    notes = " ".join(kserve.notes_of(served(), 0.1))
    assert "sends 10% of the requests to this revision of digits-v2" in notes
    assert (
        "canaryTrafficPercent"
        not in as_written(tmp_path / "b.yaml", kserve.inference_of(served(), plan, URI))["spec"][
            "predictor"
        ]
    )


@pytest.mark.parametrize("share", [0, 1, 1.5, 0.005, 0.125])
def test_a_share_that_kserve_does_not_take_is_refused(share):
    with pytest.raises(UsageError, match="wanted whole percent") as caught:
        kserve.checked_traffic(share)
    assert caught.value.place == "--canary-traffic"
    assert kserve.checked_traffic(0.1) == 0.1


def test_threads_that_are_not_known_are_said():
    notes = " ".join(kserve.notes_of(replace(served(), backend=Backend("model.onnx"))))
    assert "threads of an instance are not known" in notes


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("onnx_int8", "onnx-int8"),
        ("Digits.v2", "digits-v2"),
        ("8bit", "model-8bit"),
        ("a" * 90, "a" * 40),
        ("__", "model"),
    ],
)
def test_names_are_such_as_kubernetes_takes(name, wanted, plan):
    assert kserve.object_name(name) == wanted
    assert kserve.inference_of(served(name), plan, URI)["metadata"]["name"] == wanted
    assert len(kserve.runtime_of(served(name))["metadata"]["name"]) <= 63


@pytest.mark.parametrize(
    "uri", [None, "", "models/digits", "ftp://x/y", "s3://", "s3://a b", "s3://[x"]
)
def test_a_place_that_no_cluster_can_fetch_from_is_refused(uri):
    with pytest.raises(UsageError, match=r"fetch the model from|wanted the place") as caught:
        kserve.checked_uri(uri)
    assert caught.value.place == "--storage-uri"


def test_commands_apply_wait_and_send(plan):
    steps = instructions.for_kserve(served(), "digits-v2", ("a.yaml", "b.yaml"))
    words = [shlex.split(step.command) for step in steps]
    assert words[0] == ["kubectl", "apply", "-f", "a.yaml", "-f", "b.yaml"]
    assert words[1][-2:] == ["inferenceservice/digits-v2", "--timeout=600s"]
    assert words[2][-1].endswith("{.status.url})/v2/models/Digits.v2/infer")


@pytest.mark.slow
def test_a_bundle_has_repository_and_manifests(tmp_path, plan, monkeypatch):
    onnx_model(tmp_path / "model", {"image": ["batch", 3, 4, 4]})
    built = variant(tmp_path / "model", Format.ONNX, IMAGE)
    monkeypatch.setattr(deploying, "open_built", lambda *_, **__: built)
    (tmp_path / "plan.json").write_text(plan.to_json())
    out = tmp_path / "out"
    given = {"plan": tmp_path / "plan.json", "engine": "kserve"}
    report = Report.model_construct()
    with pytest.raises(UsageError, match="a cluster needs a place"):
        deploying.deploy("small", report, tmp_path / "report.json", out, **given)
    deployed = deploying.deploy(
        "small", report, tmp_path / "report.json", out, options=DeployOptions(storage_uri=URI), **given
    )
    assert deployed.files == (
        "README.md",
        "golden-request.json",
        "golden-response.json",
        "inferenceservice.yaml",
        "model_repository/small/1/model.onnx",
        "model_repository/small/config.pbtxt",
        "plan.json",
        "servingruntime.yaml",
    )
    config = model_configuration.read(out / "model_repository" / "small" / "config.pbtxt")
    assert config.instance_group[0].count == 2
    manifest = YAML(typ="safe").load((out / "inferenceservice.yaml").read_text())
    assert manifest["spec"]["predictor"]["model"]["resources"]["limits"]["cpu"] == "2"
    text = (out / "README.md").read_text()
    assert "copy the content of `model_repository/` to pvc://models/digits" in text
    assert all(command in text for command in deployed.commands)
    shown = deploying.document(deployed)
    assert shown.title == "small for KServe"
    assert shown.answer.startswith("The model small lies in ")
    golden = json.loads((out / "golden-response.json").read_text())
    assert golden["outputs"][0]["name"] == "logits"
