"""`target: tensorrt` of both quantizers: it passes the check before a build, and is right."""

import numpy as np
import onnx
import pytest
from pydantic import ValidationError
from quantized_onnx import applied, layer
from tiny_networks import INPUTS, Noise, apply, artifact, feed, job, sqnr_db, torch_artifact

from optcli.artifact import Format
from optcli.errors import StepError
from optcli.models.formats import onnx as onnx_format
from optcli.models.onnx_graphs.protobuf import precision_of
from optcli.passes._tensorrt.constraints import keep_pairs_before_products, violations
from optcli.passes._tensorrt.grids import (
    declare_kernels,
    fold_weights,
    make_fp8,
    make_signed,
    unfold_weights,
)
from optcli.passes._tensorrt.precision import work
from optcli.passes.export_onnx import ExportOnnx
from optcli.passes.quantize_nncf import QuantizeNncf
from optcli.passes.quantize_onnxruntime import QuantizeOnnxruntime

PASSES = {
    "nncf": QuantizeNncf(target="tensorrt"),
    "onnxruntime": QuantizeOnnxruntime(target="tensorrt"),
    "onnxruntime, fp8": QuantizeOnnxruntime(target="tensorrt", precision="fp8"),
    "onnxruntime, one scale": QuantizeOnnxruntime(target="tensorrt", per_channel=False),
}


def computed(model, values):
    """What ONNX Runtime computes, operator by operator."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    data = model.SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return session.run(None, values)[0]


def noise():
    values = np.random.default_rng(3).standard_normal((2, 4, 6, 6)).astype(np.float32)
    return {"x": values}


@pytest.fixture(scope="module", params=["Grey", "Attention"])
def exported(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    source = torch_artifact(folder, request.param)
    inputs = INPUTS[request.param]
    return request.param, apply(ExportOnnx(exporter="dynamo"), source, folder / "onnx", inputs)


@pytest.mark.slow
@pytest.mark.parametrize("one", PASSES.values(), ids=PASSES)
def test_the_result_is_what_tensorrt_wants(tmp_path, exported, one):
    name, source = exported
    inputs = INPUTS[name]
    made = apply(one, source, tmp_path / "out", inputs, calibration=Noise(inputs, count=16))
    fp8 = one is PASSES["onnxruntime, fp8"]
    assert made.precision == ("fp8" if fp8 else "int8")
    assert made.facts["target"] == "tensorrt"
    model = onnx_format.open(made.path)
    assert precision_of(model) == made.precision
    assert applied(violations, model) == []
    found = work(model)
    assert sum(each.precision == made.precision for each in found) >= 3
    assert all("two activations" in each.reason for each in found if each.precision == "fp32")
    values = feed(inputs, 8, seed=99)
    before = computed(onnx_format.open(source.path), values)
    assert sqnr_db(before, computed(model, values)) > (20 if fp8 else 25)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nncf", "onnxruntime"])
@pytest.mark.parametrize("exported", ["Grey"], indirect=True)
def test_pairs_stand_before_products_alone(tmp_path, exported, kind):
    name, source = exported
    inputs = INPUTS[name]
    made = apply(PASSES[kind], source, tmp_path / "out", inputs, calibration=Noise(inputs, count=16))
    model = onnx_format.open(made.path)
    made_by = {node.output[0]: node for node in model.graph.node}
    add = next(node for node in model.graph.node if node.op_type == "Add")
    # The convolution before is fused with the addition only where nothing stands between.
    assert sorted(made_by[each].op_type for each in add.input).count("DequantizeLinear") <= 1
    readers = [n for n in model.graph.node if n.op_type in ("ReduceMean", "GlobalAveragePool")]
    assert readers
    assert all(made_by[node.input[0]].op_type == "Relu" for node in readers)


REFUSED = [
    (QuantizeNncf, {"preset": "mixed"}, "no asymmetric activations"),
    (QuantizeOnnxruntime, {"activation_type": "uint8"}, "`activation_type` has no effect"),
    (QuantizeOnnxruntime, {"format": "qoperator"}, "`format` has no effect"),
    (QuantizeOnnxruntime, {"target_isa": "vnni"}, "`target_isa` has no effect"),
    (QuantizeOnnxruntime, {"reduce_range": True}, "`reduce_range` has no effect"),
]


@pytest.mark.parametrize(("kind", "options", "text"), REFUSED)
def test_options_that_contradict_the_target(kind, options, text):
    with pytest.raises(ValidationError, match=text):
        kind(target="tensorrt", **options)


def test_fp8_is_for_tensorrt():
    with pytest.raises(ValidationError, match="`precision: fp8` is for `target: tensorrt`"):
        QuantizeOnnxruntime(precision="fp8")


def test_an_openvino_model_is_not_for_tensorrt(tmp_path):
    source = artifact(tmp_path, Format.OPENVINO)
    with pytest.raises(StepError, match="TensorRT reads ONNX models"):
        PASSES["nncf"].run(source, job(source, tmp_path / "out", INPUTS["Conv"]))


@pytest.mark.parametrize(
    ("changes", "low", "high"),
    [
        ({"integers": np.uint8, "zero": 128}, -3.8, 3.8),
        ({"integers": np.uint8}, 0.0, 7.6),
        ({"zero": 60}, -5.6, 2.0),
        ({"zero": -60}, -2.0, 5.6),
    ],
)
def test_grids_become_symmetric_and_clip_nothing_more(changes, low, high):
    model = layer(scales=0.03, **changes)
    values = {"x": np.clip(3 * noise()["x"], low, high)}
    before = computed(model, values)
    assert applied(make_signed, model) == 1
    onnx.checker.check_model(model, full_check=True)
    assert applied(violations, model) == []
    assert sqnr_db(before, computed(model, values)) > 30
    assert applied(make_signed, model) == 0


def test_weights_are_stored_and_taken_out_exactly():
    model = layer(stored=False)
    before = computed(model, noise())
    assert applied(fold_weights, model) == 1
    assert {tensor.data_type for tensor in model.graph.initializer if tensor.name == "wq"} == {3}
    assert "w" not in {tensor.name for tensor in model.graph.initializer}
    assert sqnr_db(before, computed(model, noise())) > 100
    assert applied(unfold_weights, model) == 1
    onnx.checker.check_model(model, full_check=True)
    assert sqnr_db(before, computed(model, noise())) > 100


@pytest.mark.parametrize("stored", [True, False])
def test_kernels_of_dequantized_weights_are_declared(stored):
    model = layer(stored=stored)
    (conv,) = (node for node in model.graph.node if node.op_type == "Conv")
    sizes = [each for each in conv.attribute if each.name == "kernel_shape"]
    for each in sizes:
        conv.attribute.remove(each)
    before = computed(model, noise())
    assert applied(declare_kernels, model) == 1
    onnx.checker.check_model(model, full_check=True)
    (conv,) = (node for node in model.graph.node if node.op_type == "Conv")
    weights = next(each for each in model.graph.initializer if each.name in ("w", "wq"))
    (declared,) = (list(each.ints) for each in conv.attribute if each.name == "kernel_shape")
    assert declared == list(weights.dims[2:])
    assert np.array_equal(before, computed(model, noise()))
    assert applied(declare_kernels, model) == 0


def test_fp8_has_the_range_of_the_integers():
    model = layer(stored=False)
    before = computed(model, noise())
    assert applied(make_fp8, model) == 2
    applied(fold_weights, model)
    assert applied(violations, model) == []
    assert 25 < sqnr_db(before, computed(model, noise())) < 60


def test_a_pair_that_no_product_reads_is_taken_out():
    model = layer()
    helper = onnx.helper
    nodes = model.graph.node
    nodes[-1].output[0] = "made"
    grid = ["x_scale", "x_zero"]
    nodes.append(helper.make_node("QuantizeLinear", ["made", *grid], ["mq"], "idle_q"))
    nodes.append(helper.make_node("DequantizeLinear", ["mq", *grid], ["md"], "idle_d"))
    nodes.append(helper.make_node("Relu", ["md"], ["y"], "relu"))
    before = computed(model, noise())
    assert applied(keep_pairs_before_products, model) == 1
    assert [node.name for node in model.graph.node if "idle" in node.name] == []
    assert model.graph.node[-1].input[0] == "made"
    assert sqnr_db(before, computed(model, noise())) > 15
    assert applied(keep_pairs_before_products, model) == 0


@pytest.mark.parametrize("output", ["left", "right"])
def test_a_pair_before_a_split_is_kept_for_the_product_behind_any_part(output):
    model = layer()
    helper = onnx.helper
    nodes = [
        helper.make_node("Concat", ["x", "x"], ["both"], "concat", axis=1),
        *model.graph.node[:-1],
        helper.make_node("Split", ["xd"], ["left", "right"], "split", axis=1, num_outputs=2),
        model.graph.node[-1],
    ]
    nodes[1].input[0] = "both"
    nodes[-1].input[0] = output
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    assert applied(keep_pairs_before_products, model) == 0
    assert [each.precision for each in work(model)] == ["int8"]
