"""Real engines of TensorRT-RTX, which builds without a GPU, in child processes as passes do."""

import os
from dataclasses import asdict

import numpy as np
import onnx
import pytest
from needs import needs
from onnx import TensorProto, helper, numpy_helper
from tiny_networks import Heard, artifact, job

from optcli.artifact import Format
from optcli.errors import StepError
from optcli.models import formats
from optcli.models.engines import EngineError, child, sidecar
from optcli.models.engines.job import EngineJob
from optcli.models.formats import onnx as onnx_format
from optcli.passes.tensorrt_rtx_engine import TensorrtRtxEngine
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow
IMAGE = (TensorSpec(name="image", shape=("batch", 4, 8, 8), batch={"min": 1, "opt": 2, "max": 4}),)
PROFILE = {"image": {"min": [1, 4, 8, 8], "opt": [2, 4, 8, 8], "max": [4, 4, 8, 8]}}


@pytest.fixture(scope="module", autouse=True)
def _installed():
    needs("package", "tensorrt_rtx")


def network(operator="Relu", domain=""):
    weights = np.random.default_rng(0).standard_normal((4, 4, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["image", "weights"], ["mixed"], "conv", pads=[1, 1, 1, 1]),
            helper.make_node(operator, ["mixed"], ["out"], "last", domain=domain),
        ],
        "small",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 4, 8, 8])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["batch", 4, 8, 8])],
        [numpy_helper.from_array(weights, "weights")],
    )
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "onnx"
    folder.mkdir()
    onnx.save(network(), folder / onnx_format.FILE)
    return artifact(folder, Format.ONNX, ["out"])


def build(tmp_path, model=None, **changes):
    path = tmp_path / "model.onnx"
    if model is not None:
        onnx.save(model, path)
    heard = []
    values = {"profiles": [PROFILE], "targets": ["SM86"], **changes}
    wanted = EngineJob("tensorrt_rtx", os.fspath(path), os.fspath(tmp_path / "model.plan"), **values)
    found = child.run(
        "optcli.models.engines.building:build", asdict(wanted), timeout_s=300, on_event=heard.append
    )
    return found, heard


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_the_pass_builds_an_engine_that_is_sound(source, tmp_path, precision):
    heard = Heard()
    work = job(source, tmp_path / "out", IMAGE, observer=heard, batch_sizes=(1, 4))
    one = TensorrtRtxEngine(precision=precision, compute_capabilities=("sm86",))
    made = one.run(source, work)
    formats.check(Format.TENSORRT_RTX, work.out)
    about = sidecar.read(work.out)
    assert (about.product, about.targets) == ("tensorrt_rtx", ("SM86",))
    assert made.precision == about.precision == precision
    assert made.facts["engine"]["plan_bytes"] == (work.out / sidecar.PLAN).stat().st_size > 1000
    assert any(fraction is not None for fraction in heard.fractions)
    assert sorted(each.name for each in work.out.iterdir()) == ["engine.json", "model.plan"]


def test_the_parsed_network_is_told(tmp_path):
    found, heard = build(tmp_path, network())
    assert found["network"]["layers"][0]["type"] == "CONVOLUTION"
    assert found["network"]["inputs"] == [{"name": "image", "dtype": "fp32", "shape": [-1, 4, 8, 8]}]
    assert found["network"]["outputs"][0]["name"] == "out"
    assert [each for each in heard if "progress" in each]


def test_an_operator_that_there_is_not_is_named_with_its_node(tmp_path):
    with pytest.raises(EngineError, match=r"node last \(NoSuchOp\): the parser knows no such operator"):
        build(tmp_path, network("NoSuchOp", "my.own"))


def test_a_file_that_is_no_onnx_model(tmp_path):
    (tmp_path / "model.onnx").write_bytes(b"no model" * 20)
    with pytest.raises(EngineError, match="cannot read the model: this is no ONNX model") as raised:
        build(tmp_path)
    assert raised.value.place.endswith("model.onnx")


def test_sizes_that_vary_and_no_profile(tmp_path):
    with pytest.raises(EngineError, match="sizes of image vary, and there is no optimization profile"):
        build(tmp_path, network(), profiles=[])


def test_a_size_that_the_network_fixes(tmp_path):
    wrong = {"image": {bound: [*sizes[:3], 9] for bound, sizes in PROFILE["image"].items()}}
    with pytest.raises(
        EngineError, match="dimension 3: the model fixes it to 8, and the profile says 9"
    ):
        build(tmp_path, network(), profiles=[wrong])


def test_what_only_other_versions_have_is_named(tmp_path):
    with pytest.raises(EngineError, match=r"TensorRT-RTX .* has no builder flag INT8"):
        build(tmp_path, network(), flags={"INT8": True})


def test_what_needs_a_gpu_says_so(source, tmp_path):
    needs("no gpu")
    work = job(source, tmp_path / "out", IMAGE)
    with pytest.raises(StepError, match="with these options the builder needs a GPU, and found none"):
        TensorrtRtxEngine(refit="any").run(source, work)


def test_it_is_stopped_at_its_time_limit(source, tmp_path):
    work = job(source, tmp_path / "out", IMAGE)
    with pytest.raises(StepError, match=r"more than 0\.01 seconds and was stopped"):
        TensorrtRtxEngine(max_seconds=0.01).run(source, work)


def test_a_batch_size_outside_is_refused_by_the_pass(source, tmp_path):
    work = job(source, tmp_path / "out", IMAGE, batch_sizes=(1, 8))
    with pytest.raises(StepError, match="batch size 8 of the recipe lies in no optimization profile"):
        TensorrtRtxEngine(compute_capabilities=("sm86",)).run(source, work)


def test_asymmetric_quantization_is_refused_with_its_node(tmp_path):
    model = network()
    scale = numpy_helper.from_array(np.float32(0.1), "scale")
    zero = numpy_helper.from_array(np.int8(3), "zero")
    model.graph.initializer.extend([scale, zero])
    nodes = [
        helper.make_node("QuantizeLinear", ["image", "scale", "zero"], ["q"], "quantize"),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["dq"], "dequantize"),
        *model.graph.node,
    ]
    nodes[2].input[0] = "dq"
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    with pytest.raises(EngineError, match="quantized asymmetrically"):
        build(tmp_path, model)
