"""Engines of real networks, built by the TensorRT-RTX that is installed: it needs no GPU for that."""

from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from engine_networks import KINDS, Network, network
from quantized_onnx import applied, layer
from tiny_networks import Noise, apply, artifact, feed, job, sqnr_db

from optcli.artifact import Format
from optcli.errors import StepError
from optcli.models.engines import EngineError, child, inspection
from optcli.models.engines.job import EngineJob as Build
from optcli.models.engines.job import profile_of_inputs
from optcli.models.formats import onnx as onnx_format
from optcli.passes._tensorrt import engine as engine_pass
from optcli.passes._tensorrt.constraints import violations
from optcli.passes._tensorrt.precision import Keep, prepare
from optcli.passes.quantize_nncf import QuantizeNncf
from optcli.passes.quantize_onnxruntime import QuantizeOnnxruntime
from optcli.passes.tensorrt_rtx_engine import TensorrtRtxEngine
from optcli.settings import TensorSpec

pytestmark = [pytest.mark.slow, pytest.mark.needs("package", "tensorrt_rtx")]

QUANTIZERS = {
    "nncf": QuantizeNncf(target="tensorrt", samples=4),
    "onnxruntime": QuantizeOnnxruntime(target="tensorrt", samples=4),
}


# Of the detector each takes some seconds.
QUANTIZED = [
    pytest.param((kind, name), id=f"{name}-{kind}", marks=[pytest.mark.long] * (kind == "detector"))
    for kind in KINDS
    for name in QUANTIZERS
]


@pytest.fixture(scope="module")
def networks(tmp_path_factory) -> Callable[[str], Network]:
    folder = tmp_path_factory.mktemp("networks")
    return cache(lambda kind: network(kind, folder))


@pytest.fixture(scope="module", params=KINDS)
def real(request, networks) -> Network:
    return networks(request.param)


@pytest.fixture(scope="module", params=QUANTIZED)
def quantized(request, networks, tmp_path_factory) -> tuple[Network, Path]:
    """A network, and the folder of the same in INT8."""
    kind, quantizer = request.param
    real = networks(kind)
    out = tmp_path_factory.mktemp("quantized") / quantizer
    samples = Noise(real.inputs, count=4, scale=real.scale)
    source = artifact(real.folder, Format.ONNX)
    made = apply(QUANTIZERS[quantizer], source, out, real.inputs, calibration=samples)
    assert made.precision == "int8"
    return real, out


def prepared(source: Path, inputs, precision, folder: Path, **more):
    out = folder / "prepared"
    out.mkdir()
    work = job(artifact(source, Format.ONNX), folder / "out", inputs)
    asked = {"keep": Keep(), "strongly_typed": True, "product": "TensorRT-RTX", **more}
    return prepare(source, out, precision=precision, job=work, **asked)


def built(path: Path, inputs, folder: Path, flags=None):
    """What TensorRT-RTX says of the engine it makes, with the profile of the inputs."""
    made = {}
    for spec in inputs:
        ranges = {name: each.model_dump() for name, each in spec.ranges.items()}
        made |= profile_of_inputs([{"name": spec.name, "shape": spec.shape}], ranges)
    wanted = Build(
        "tensorrt_rtx", str(path), str(folder / "model.plan"), [made], targets=("SM89",),
        flags=flags or {},
    )  # fmt: skip
    return child.run("optcli.models.engines.building:build", asdict(wanted), timeout_s=300.0)


def computed(path: Path, values):
    """What ONNX Runtime computes, operator by operator."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(None, values)[0]


def kept_db(real: Network, path: Path) -> float:
    values = feed(real.inputs, 4 if real.is_dynamic else 1, seed=99, scale=real.scale)
    return sqnr_db(computed(real.folder / onnx_format.FILE, values), computed(path, values))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_engines_in_floating_point(real, precision, tmp_path):
    ready = prepared(real.folder, real.inputs, precision, tmp_path)
    made = built(ready.path, real.inputs, tmp_path, ready.flags)
    layers = made["network"]["layers"]
    products = [each for each in layers if each["type"] in inspection.PRODUCTS]
    assert len(products) > 15
    assert {each["precision"] for each in products} == {precision}
    assert made["plan_bytes"] == (tmp_path / "model.plan").stat().st_size > 100_000
    assert [each["dtype"] for each in made["network"]["inputs"]] == ["fp32"]
    assert (made["network"]["inputs"][0]["shape"][0] == -1) == real.is_dynamic
    assert kept_db(real, ready.path) > (100 if precision == "fp32" else real.fp16_db)


def test_int8_for_weak_typing_is_the_same_with_weights_in_floats(quantized, tmp_path):
    real, folder = quantized
    weak = {"strongly_typed": False, "product": "TensorRT 8.6.0"}
    ready = prepared(folder, real.inputs, "int8", tmp_path, **weak)
    assert ready.flags == {"TF32": False, "INT8": True, "FP16": True}
    model = onnx_format.open(ready.path.parent)
    assert applied(violations, model) == []
    constants = {tensor.name for tensor in model.graph.initializer}
    backs = [node.input[0] for node in model.graph.node if node.op_type == "DequantizeLinear"]
    assert backs
    assert not constants & set(backs)
    values = feed(real.inputs, 1, seed=99, scale=real.scale)
    before = computed(folder / onnx_format.FILE, values)
    assert sqnr_db(before, computed(ready.path, values)) > 60


def test_engines_in_int8(quantized, tmp_path):
    real, folder = quantized
    assert applied(violations, onnx_format.open(folder)) == []
    ready = prepared(folder, real.inputs, "int8", tmp_path)
    made = built(ready.path, real.inputs, tmp_path, ready.flags)
    layers = made["network"]["layers"]
    in_integers = len(inspection.quantized(layers)["yes"])
    assert in_integers == ready.facts["precisions"]["int8"] > 10
    quantizers = [each for each in layers if each["type"] == "QUANTIZE"]
    assert {each["precision"] for each in quantizers} == {"int8"}
    rest = [each for each in layers if each["type"] in inspection.PRODUCTS]
    assert {each["precision"] for each in rest} == {"fp16"}  # of what comes out of them
    assert ready.facts["expectation"].startswith(f"{in_integers} of ")
    assert kept_db(real, ready.path) > real.int8_db


@pytest.mark.parametrize(
    ("precision", "kind"),
    [
        ("bf16", "resnet"),
        ("bf16", "vit"),
        ("fp8", "resnet"),
        pytest.param("fp8", "vit", marks=pytest.mark.long),
    ],
)
def test_engines_in_newer_types(kind, precision, tmp_path):
    real = network(kind, tmp_path)
    source = real.folder
    if precision == "fp8":
        one = QuantizeOnnxruntime(target="tensorrt", precision="fp8", samples=4)
        samples = Noise(real.inputs, count=4, scale=real.scale)
        apply(one, artifact(source, Format.ONNX), tmp_path / "fp8", real.inputs, calibration=samples)
        source = tmp_path / "fp8"
    ready = prepared(source, real.inputs, precision, tmp_path)
    made = built(ready.path, real.inputs, tmp_path, ready.flags)
    found = {each["precision"] for each in made["network"]["layers"]}
    assert precision in found
    assert ready.facts["precisions"][precision] > 10
    if precision == "fp8":  # ONNX Runtime has no convolutions in bf16 on the CPU
        assert kept_db(real, ready.path) > 10


def test_a_pass_builds_one(tmp_path):
    real = network("resnet", tmp_path)
    source = artifact(real.folder, Format.ONNX)
    made = apply(TensorrtRtxEngine(precision="fp16"), source, tmp_path / "engine", real.inputs)
    assert made.precision == "fp16"
    assert made.facts["engine"]["profiles"][0]["input"]["max"][0] == 16
    assert "compute in FP16" in made.facts["expectation"]


@pytest.mark.parametrize(
    ("changes", "node"),
    [
        ({"zero": 5}, "QuantizeLinear_xq"),
        ({"integers": np.uint8, "zero": 128}, "QuantizeLinear_xq"),
        ({"bias": "int32"}, "DequantizeLinear_bd"),
        ({"weight_integers": np.uint8}, "DequantizeLinear_wd"),
        ({"scales": 0.0}, "QuantizeLinear_xq"),
    ],
    ids=["asymmetric", "asymmetric, unsigned", "bias", "weights", "zero"],
)
def test_what_the_parser_refuses_we_refuse_before_with_the_node(tmp_path, changes, node):
    model = layer(**changes)
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(EngineError, match=node):
        built(tmp_path / "model.onnx", [image()], tmp_path)
    assert [each.node for each in applied(violations, model)] == [node]


@pytest.mark.parametrize(
    "changes",
    [{"integers": np.uint8}, {"scales": [0.02] * 4}, {"axis": 1}],
    ids=["unsigned", "activations by channel", "wrong axis"],
)
def test_what_the_parser_takes_and_misreads_we_refuse(tmp_path, changes):
    """Unsigned zero points are read as INT8: half of the range is clipped, without a word."""
    model = layer(**changes)
    onnx.save(model, tmp_path / "model.onnx")
    made = built(tmp_path / "model.onnx", [image()], tmp_path)
    quantizer = next(each for each in made["network"]["layers"] if each["type"] == "QUANTIZE")
    assert quantizer["precision"] == "int8"
    with pytest.raises(StepError, match="TensorRT cannot take this quantized model"):
        prepared(tmp_path, [image()], "int8", tmp_path)


def image(**ranges) -> TensorSpec:
    return TensorSpec(name="x", shape=("b", 4, 6, 6), ranges=ranges)


def test_int8_without_pairs_names_the_passes_that_make_them(tmp_path):
    real = network("resnet", tmp_path)
    with pytest.raises(StepError, match="the model is not quantized") as error:
        prepared(real.folder, real.inputs, "int8", tmp_path)
    assert "quantize_nncf" in error.value.hint
    assert "quantize_onnxruntime" in error.value.hint


def test_an_operator_that_the_parser_does_not_know(tmp_path):
    model = layer()
    model.graph.node[-1].output[0] = "before"
    model.graph.node.append(onnx.helper.make_node("NoSuchOp", ["before"], ["y"], "strange"))
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(EngineError, match=r"NoSuchOp.*strange|strange.*NoSuchOp"):
        built(tmp_path / "model.onnx", [image()], tmp_path)
    said = engine_pass.parsed(tmp_path, "tensorrt_rtx")
    assert "TensorRT-RTX" in said
    assert "does not take NoSuchOp 'strange': the parser knows no such operator" in said


def test_a_size_that_the_network_has_not(tmp_path):
    onnx.save(layer(), tmp_path / "model.onnx")
    wrong = replace_shape(image(), ("b", 4, 7, 7))
    with pytest.raises(EngineError, match="7"):
        built(tmp_path / "model.onnx", [wrong], tmp_path)


def replace_shape(spec: TensorSpec, shape) -> TensorSpec:
    return spec.model_copy(update={"shape": shape})


def test_what_can_be_checked_without_a_gpu(tmp_path):
    """The skipped variant's sentences: profile, precision, and the parser by its name."""
    real = network("resnet", tmp_path)
    work = replace(
        job(artifact(real.folder, Format.ONNX), tmp_path / "out", real.inputs), batch_sizes=(1, 8)
    )
    source = artifact(real.folder, Format.ONNX)
    found = engine_pass.checked(source, work, "fp16", Keep(), "inputs")
    assert found[0] == "its optimization profile fits"
    assert "compute in FP16" in found[1]
    assert "TensorRT-RTX" in found[2]
    assert "parser takes all" in found[2]
    assert not list(tmp_path.glob("check-*"))
    too_large = replace(work, batch_sizes=(1, 64))
    profile, missing = engine_pass.checked(source, too_large, "int8", Keep(), "inputs")
    assert profile.startswith("it would fail: ")
    assert "64" in profile
    assert missing.startswith("it would fail: int8 was asked for and the model is not quantized")


def test_without_any_parser_it_says_so(tmp_path):
    onnx.save(layer(), tmp_path / "model.onnx")
    assert "the extra trt-rtx" in engine_pass.parsed(tmp_path, None)
