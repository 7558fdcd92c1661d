"""Passes that build engines: what a child process is asked for, and what is kept of its answer."""

import json

import numpy as np
import pytest
from pydantic import ValidationError
from tiny_networks import Heard, Noise, artifact, job
from tiny_project import write_model

from optcli import environment
from optcli.artifact import Format
from optcli.errors import StepError
from optcli.models import formats
from optcli.models.engines import EngineError, child, driver, sidecar
from optcli.models.engines.driver import CudaDevice
from optcli.models.formats import onnx as onnx_format
from optcli.passes import Traits
from optcli.passes._tensorrt.engine import two_of_four
from optcli.passes.tensorrt_engine import TensorrtEngine
from optcli.passes.tensorrt_rtx_engine import TensorrtRtxEngine
from optcli.settings import TensorSpec

IMAGE = (TensorSpec(name="image", shape=("batch", 3, 4, 4), batch={"min": 1, "opt": 4, "max": 16}),)
ANY_SIZE = (
    TensorSpec(
        name="image",
        shape=("batch", 3, "height", 4),
        batch={"min": 1, "opt": 4, "max": 16},
        height={"min": 2, "opt": 4, "max": 8},
    ),
)
H200 = CudaDevice(0, "NVIDIA H200", "9.0", 1 << 30, "13.0", "580.1")
ENGINE = {
    "Layers": [
        {
            "Name": "/MatMul",
            "LayerType": "gemm",
            "Inputs": [{"Datatype": "Half"}],
            "TacticName": "gemm_f16",
        }
    ]
}


class Builder:
    """Stands where the child process would: remembers jobs, writes a plan, answers as it is told."""

    def __init__(self, product="tensorrt", version="10.16.1.11", strong=True, gpu=True):
        self.asked, self.runs, self.strong, self.gpu = [], [], strong, gpu
        self.product, self.version, self.fails = product, version, None

    def run(self, function, wanted, *, python, timeout_s, on_event=None):
        self.runs.append((function, python, timeout_s))
        title = "TensorRT" if self.product == "tensorrt" else "TensorRT-RTX"
        if function.endswith(":describe"):
            return {
                "title": f"{title} {self.version}",
                "version": self.version,
                "strong_typing": self.strong,
            }
        self.asked.append(json.loads(json.dumps(wanted)))
        if self.fails:
            raise self.fails
        on_event({"progress": [0.5, "Tactics"]})
        on_event({"warned": "hm"})
        with open(wanted["plan"], "wb") as file:
            file.write(b"plan")
        from optcli.models.engines import inspection

        layer = {
            "name": "/MatMul",
            "type": "MATRIX_MULTIPLY",
            "inputs": ["flat", "weight"],
            "outputs": ["y"],
        }
        shape = [-1, 3, 4, 4]
        return {
            "product": self.product,
            "version": self.version,
            "device": vars(H200) if self.gpu else None,
            "flags": sorted(name for name, wish in wanted["flags"].items() if wish),
            "network": {
                "inputs": [{"name": "image", "dtype": "fp32", "shape": shape}],
                "outputs": [{"name": "logits", "dtype": "fp32", "shape": [-1, 2]}],
                "layers": [{**layer, "precision": "fp16"}],
            },
            "engine": inspection.described(json.dumps(ENGINE)) if self.gpu else None,
            "seconds": 1.5,
            "plan_bytes": 4,
            "timing_cache": None,
            "python": "3.10.13",
        }


@pytest.fixture
def builder(monkeypatch):
    monkeypatch.delenv(child.PYTHON, raising=False)
    made = Builder()
    monkeypatch.setattr(child, "run", made.run)
    monkeypatch.setattr(driver, "present", lambda: made.gpu)
    monkeypatch.setattr(driver, "devices", lambda: (H200,) if made.gpu else ())
    return made


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "onnx"
    folder.mkdir()
    write_model(folder / onnx_format.FILE)
    return artifact(folder, Format.ONNX, ["logits"])


@pytest.fixture
def run(source, tmp_path):
    """`run(pass, inputs=..., **more)`: what it made, its folder and what was heard."""

    def go(one, inputs=IMAGE, **more):
        heard = Heard()
        out = tmp_path / "out"
        return one.run(source, job(source, out, inputs, observer=heard, **more)), out, heard

    return go


def test_an_engine_with_its_sidecar_and_facts(run, builder, source):
    made, out, heard = run(TensorrtEngine(precision="fp16"), batch_sizes=(1, 8))
    formats.check(Format.TENSORRT, out)
    about = sidecar.read(out)
    assert (about.product, about.version, about.gpu) == ("tensorrt", "10.16.1.11", "NVIDIA H200")
    assert (about.cuda, about.driver, about.compute_capability) == ("13.0", "580.1", "9.0")
    assert about.onnx_sha256 == sidecar.sha256_of(source.path / onnx_format.FILE)
    assert about.python == "3.10.13"
    bounds = {"min": [1, 3, 4, 4], "opt": [4, 3, 4, 4], "max": [16, 3, 4, 4]}
    assert list(about.profiles) == [{"image": bounds}]
    assert made.precision == "fp16"
    assert made.facts["expectation"] == "you asked for FP16; 1 of 1 matrix products run in it"
    assert made.facts["expectation_by"] == "the engine's inspector"
    inspected = made.facts["engine"]["inspected"]
    assert inspected["reformats"] == 0
    layer = {"name": "/MatMul", "type": "gemm", "precision": "fp16", "tactic": "gemm_f16"}
    assert inspected["layers"] == [{**layer, "reformat": False}] == list(about.layers)
    assert 0.5 in heard.fractions
    assert "hm" in heard.warnings


def test_without_a_gpu_it_is_the_model_that_is_asked(run, builder):
    builder.product, builder.gpu = "tensorrt_rtx", False
    made, out, _ = run(TensorrtRtxEngine(precision="fp16", compute_capabilities=("sm86",)))
    formats.check(Format.TENSORRT_RTX, out)
    assert builder.asked[0]["targets"] == ["SM86"]
    assert "FP16" in made.facts["expectation"]
    assert "no GPU" in made.facts["expectation_by"]
    assert sidecar.read(out).gpu is None


def test_options_become_what_the_builder_is_told(run, builder, tmp_path):
    options = {
        "workspace_mib": 2,
        "memory_pools_mib": {"tactic_dram": 3},
        "optimization_level": 5,
        "aux_streams": 0,
        "refit": "identical",
        "strip_weights": True,
        "verbosity": "names",
        "version_compatible": True,
        "hardware_compatible": "ampere_plus",
        "max_seconds": 7,
    }
    _, out, _ = run(TensorrtEngine(**options), cache=tmp_path / "caches", batch_sizes=(1,))
    (asked,) = builder.asked
    assert asked["pools"] == {"TACTIC_DRAM": 3 << 20, "WORKSPACE": 2 << 20}
    assert (asked["optimization_level"], asked["aux_streams"]) == (5, 0)
    for flag in ("REFIT_IDENTICAL", "STRIP_PLAN", "VERSION_COMPATIBLE"):
        assert asked["flags"][flag] is True
    assert "REFIT" not in asked["flags"]
    assert asked["verbosity"] == "LAYER_NAMES_ONLY"
    assert asked["hardware"] == "ampere_plus"
    name = "tensorrt_10.16.1.11_NVIDIA-H200_9.0_580.1.cache"
    assert asked["timing_cache"] == str(tmp_path / "caches" / "timing" / name)
    assert builder.runs[1][2] == 7
    about = sidecar.read(out)
    assert about.stripped
    assert about.compatible == ("version", "ampere_plus")
    onnx_format.check(out / "weights")


def test_precision_is_a_flag_where_typing_is_weak(run, builder):
    builder.version, builder.strong = "8.6.0", False
    run(TensorrtEngine(precision="fp16"))
    assert builder.asked[0]["strongly_typed"] is False
    assert builder.asked[0]["flags"]["FP16"] is True


def test_several_profiles_of_its_own(run, builder):
    one, more = (
        {"batch": {"min": low, "opt": opt, "max": high}} for low, opt, high in [(1, 1, 1), (2, 4, 8)]
    )
    run(TensorrtEngine(profiles=[one, more]), batch_sizes=(1, 8))
    found = [
        [profile["image"][bound][0] for bound in ("min", "opt", "max")]
        for profile in builder.asked[0]["profiles"]
    ]
    assert found == [[1, 1, 1], [2, 4, 8]]


@pytest.mark.parametrize(
    ("profiles", "message"),
    [
        ([{"bach": {"min": 1, "opt": 1, "max": 1}}], "names the size 'bach', which no input has"),
        (
            [{"batch": {"min": 1, "opt": 8, "max": 32}}],
            "from 1 to 32, and the input image from 1 to 16",
        ),
        ([{"batch": {"min": 1, "opt": 1, "max": 4}}], "batch size 8 of the recipe lies in no"),
    ],
)
def test_a_profile_that_does_not_fit_is_refused_before_the_build(run, builder, profiles, message):
    with pytest.raises(StepError, match=message) as raised:
        run(TensorrtEngine(profiles=profiles), batch_sizes=(1, 8))
    assert raised.value.hint
    assert builder.asked == []


def test_a_size_that_the_model_fixes_is_named(run, builder):
    with pytest.raises(
        StepError, match="dimension 2: the model fixes it to 4, and the profile says 2 to 8"
    ):
        run(TensorrtEngine(), inputs=ANY_SIZE)


def test_profiles_from_what_is_seen(run, builder, source, monkeypatch):
    import onnx

    model = onnx.load(source.path / onnx_format.FILE)
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    onnx.save(model, source.path / onnx_format.FILE)

    class Seen(Noise):
        def __getitem__(self, index):
            sample = super().__getitem__(index)
            return type(sample)(sample.id, {"image": np.zeros((3, (3, 4, 7)[index % 3], 4), "float32")})

    one = TensorrtEngine(profiles="seen")
    assert one.roles() == ("calibration",)
    assert TensorrtEngine().roles() == ()
    run(one, inputs=ANY_SIZE, calibration=Seen(ANY_SIZE), batch_sizes=(2, 8))
    bounds = builder.asked[0]["profiles"][0]["image"]
    assert (bounds["min"], bounds["max"]) == ([2, 3, 3, 4], [8, 3, 7, 4])
    assert bounds["opt"][2] == 4


def test_seen_without_samples_is_refused(run, builder):
    with pytest.raises(StepError, match="takes sizes from calibration samples, and there are none"):
        run(TensorrtEngine(profiles="seen"))


def test_what_goes_wrong_in_the_child_fails_the_step(run, builder):
    builder.fails = EngineError("TensorRT 10 built no engine", place="model.onnx", hint="do this")
    with pytest.raises(StepError, match="built no engine") as raised:
        run(TensorrtEngine())
    assert (raised.value.place, raised.value.hint) == ("model.onnx", "do this")


@pytest.mark.parametrize("sparse", [True, False])
def test_sparse_weights_are_used_where_there_are_any(run, builder, source, sparse):
    import onnx
    from onnx import numpy_helper

    if sparse:
        path = source.path / onnx_format.FILE
        model = onnx.load(path)
        weights = numpy_helper.to_array(model.graph.initializer[0]).copy()
        weights[0::4] = weights[2::4] = 0
        model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights, "weight"))
        onnx.save(model, path)
    assert two_of_four(onnx_format.open(source.path)) == (int(sparse), 1)
    _, _, heard = run(TensorrtEngine(sparse_weights=True))
    assert builder.asked[0]["flags"]["SPARSE_WEIGHTS"] is sparse
    (said,) = [text for text in heard.warnings if "2:4" in text]
    assert ("changes nothing" in said) != sparse


def test_what_it_is_bound_to_is_in_its_key_and_not_the_cpu(builder, monkeypatch):
    monkeypatch.setattr(environment, "version_in", lambda python, name: "10.16.1.11")
    bound = Traits.of(TensorrtEngine(), "tensorrt_engine", "code").bound_to
    gpu = {"name": "NVIDIA H200", "compute_capability": "9.0", "driver": "580.1"}
    assert bound == {"product": "tensorrt", "version": "10.16.1.11", "gpu": gpu}
    assert TensorrtRtxEngine().bound_to()["gpu"] == gpu
    assert TensorrtRtxEngine(compute_capabilities=("sm86",)).bound_to()["gpu"] is None


def test_what_it_needs_is_looked_for_in_the_interpreter_that_it_uses(builder, monkeypatch):
    needs = TensorrtEngine().requires()
    assert (needs.gpu, needs.foreign, needs.python) == (True, ("tensorrt",), None)
    assert "tensorrt" not in needs.packages
    assert TensorrtEngine(python="/opt/python3.10").requires().python == "/opt/python3.10"
    monkeypatch.setenv(child.PYTHON, "/no/such/python3.10")
    assert TensorrtEngine().requires().python == "/no/such/python3.10"
    rtx = TensorrtRtxEngine().requires()
    assert (rtx.gpu, rtx.python) == (False, None)
    found = environment.missing(TensorrtEngine().requires())
    assert any("/no/such/python3.10 does not import tensorrt" in each.what for each in found)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (TensorrtEngine, {"strip_weights": True, "refit": "any"}),
        (TensorrtRtxEngine, {"compute_capabilities": ("current", "sm86")}),
        (TensorrtRtxEngine, {"version_compatible": True}),
        (TensorrtEngine, {"compute_capabilities": ("sm86",)}),
        (TensorrtEngine, {"profiles": [{"batch": {"min": 4, "opt": 2, "max": 8}}]}),
        (TensorrtEngine, {"optimization_level": 6}),
        (TensorrtEngine, {"precision": "int4"}),
    ],
)
def test_options_that_make_no_sense_are_refused(kind, options):
    with pytest.raises(ValidationError):
        kind(**options)
