"""One precision intent: flags where TensorRT types weakly, else types in the model."""

import numpy as np
import onnx
import pytest
from quantized_onnx import WEIGHT_SCALE, applied, layer
from tiny_networks import Heard, artifact, job, sqnr_db

from optcli.artifact import Format
from optcli.errors import StepError
from optcli.models.formats import onnx as onnx_format
from optcli.models.onnx_graphs.protobuf import opset_of
from optcli.passes._tensorrt.grids import fit_scales_to_half
from optcli.passes._tensorrt.precision import Keep, counts, expectation, prepare
from optcli.settings import TensorSpec

IMAGE = (TensorSpec(name="x", shape=("b", 4, 6, 6)),)
FLOAT = {"quantized_input": False, "quantized_weight": False}


@pytest.fixture
def prepared(tmp_path):
    """A function that prepares a model for a TensorRT."""

    def call(model, precision, strongly_typed=True, keep=None, observer=None):
        number = len(list(tmp_path.iterdir()))
        source, out = tmp_path / f"{number}" / "source", tmp_path / f"{number}" / "prepared"
        source.mkdir(parents=True)
        out.mkdir()
        onnx_format.save(model, source)
        product = "TensorRT-RTX 1.7.1" if strongly_typed else "TensorRT 8.6.0"
        from_source = artifact(source, Format.ONNX)
        work = job(from_source, tmp_path / f"{number}" / "out", IMAGE, observer=observer or Heard())
        return prepare(
            source, out, precision=precision, keep=keep or Keep(), strongly_typed=strongly_typed,
            product=product, job=work,
        )  # fmt: skip

    return call


def computed(model, values):
    """What ONNX Runtime computes, operator by operator."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    data = model if isinstance(model, str) else model.SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": values})[0]


def noise(seed=3):
    return np.random.default_rng(seed).standard_normal((2, 4, 6, 6)).astype(np.float32)


def fp8_layer(**changes):
    """A layer in FP8: 448 steps where int8 has 127."""
    import ml_dtypes

    kind = ml_dtypes.float8_e4m3fn
    return layer(integers=kind, weight_integers=kind, scales=0.02 * 127 / 448, **changes)


STRONG = [
    (FLOAT, "fp32", "fp32", {"TF32": False}),
    (FLOAT, "tf32", "tf32", {"TF32": True}),
    (FLOAT, "fp16", "fp16", {"TF32": False}),
    (FLOAT, "bf16", "bf16", {"TF32": False}),
    (FLOAT, "best", "fp16", {"TF32": True}),
    ({}, "int8", "int8", {"TF32": False}),
    ({}, "best", "int8", {"TF32": True}),
]


@pytest.mark.parametrize(("changes", "asked", "made", "flags"), STRONG)
def test_strong_typing_puts_it_into_the_model(prepared, changes, asked, made, flags):
    found = prepared(layer(**changes), asked)
    assert (found.precision, found.flags, found.kept) == (made, flags, ())
    assert found.facts["precision_asked_for"] == asked
    assert found.facts["precisions"] == {"fp32" if made == "tf32" else made: 1}
    model = onnx.load(found.path)
    onnx.checker.check_model(model, full_check=True)
    assert {value.type.tensor_type.elem_type for value in model.graph.input} == {1}


WEAK = [
    (FLOAT, "fp32", {"TF32": False}),
    (FLOAT, "tf32", {"TF32": True}),
    (FLOAT, "fp16", {"TF32": False, "FP16": True}),
    (FLOAT, "best", {"TF32": True, "FP16": True}),
    ({}, "int8", {"TF32": False, "FP16": True, "INT8": True}),
]


@pytest.mark.parametrize(("changes", "asked", "flags"), WEAK)
def test_weak_typing_sets_flags_and_leaves_the_types(prepared, changes, asked, flags):
    source = layer(opset=17, **changes)
    found = prepared(source, asked, strongly_typed=False)
    assert found.flags == flags
    model = onnx.load(found.path)
    floats = {1, 3}  # FLOAT, and the INT8 of zero points
    assert {tensor.data_type for tensor in model.graph.initializer} <= floats
    assert sqnr_db(computed(source, noise()), computed(model, noise())) > 100


def test_weak_typing_gets_weights_in_floats_before_a_quantizer(prepared):
    found = prepared(layer(opset=17), "int8", strongly_typed=False)
    graph = onnx.load(found.path).graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    backs = [node for node in graph.node if node.op_type == "DequantizeLinear"]
    assert len(backs) == 2
    assert not {node.input[0] for node in backs} & set(constants)


def test_weak_typing_says_how_large_kernels_are(prepared):
    source = layer(opset=17)
    (conv,) = (node for node in source.graph.node if node.op_type == "Conv")
    for each in [each for each in conv.attribute if each.name == "kernel_shape"]:
        conv.attribute.remove(each)
    graph = onnx.load(prepared(source, "int8", strongly_typed=False).path).graph
    (conv,) = (node for node in graph.node if node.op_type == "Conv")
    assert "kernel_shape" in {each.name for each in conv.attribute}


def test_weak_typing_says_which_opsets_it_knows(prepared):
    heard = Heard()
    prepared(layer(**FLOAT), "fp16", strongly_typed=False, observer=heard)
    assert any("opset 21, TensorRT 8.6.0 knows those up to 17" in text for text in heard.warnings)


@pytest.mark.parametrize("asked", ["bf16", "fp8"])
def test_what_weak_typing_lacks(prepared, asked):
    model = fp8_layer() if asked == "fp8" else layer(**FLOAT)
    with pytest.raises(StepError, match=f"TensorRT 8.6.0 has no {asked}") as error:
        prepared(model, asked, strongly_typed=False)
    assert "fp16" in error.value.hint


@pytest.mark.parametrize("strongly_typed", [True, False])
def test_nodes_are_kept_by_each_versions_means(prepared, strongly_typed):
    model = layer(opset=17, **FLOAT)
    found = prepared(model, "fp16", strongly_typed, Keep(types=("Conv",)))
    assert found.facts["kept_in_fp32"] == ["Conv_y"]
    if strongly_typed:
        assert found.facts["precisions"] == {"fp32": 1}
        assert "0 of 1 convolutions compute in FP16, 1 in FP32" in found.facts["expectation"]
    else:
        assert found.kept == ("Conv_y",)
        assert found.flags["OBEY_PRECISION_CONSTRAINTS"] is True


@pytest.mark.parametrize("strongly_typed", [True, False])
def test_what_fp16_cannot_hold_stays_in_fp32(prepared, strongly_typed):
    model = layer(opset=17, **FLOAT)
    weight = next(tensor for tensor in model.graph.initializer if tensor.name == "w")
    large = onnx.numpy_helper.to_array(weight) * 1e6
    weight.CopyFrom(onnx.numpy_helper.from_array(large, "w"))
    found = prepared(model, "fp16", strongly_typed)
    assert found.facts["kept_in_fp32"] == ["Conv_y"]
    assert found.kept == (() if strongly_typed else ("Conv_y",))


def test_a_name_that_fits_nothing(prepared):
    with pytest.raises(StepError, match="`ignored_names: Conv_z` fits no node") as error:
        prepared(layer(**FLOAT), "fp16", keep=Keep(names=("Conv_z",)))
    assert "Conv_y" in error.value.hint


def test_a_quantized_node_cannot_be_kept(prepared):
    with pytest.raises(StepError, match="Conv 'Conv_y' is to stay in fp32, and its input is quantized"):
        prepared(layer(), "int8", keep=Keep(names=("Conv_y",)))


WRONG = [
    (FLOAT, "int8", "int8 was asked for and the model is not quantized", "quantize_nncf"),
    (FLOAT, "fp8", "fp8 was asked for and the model is not quantized", "precision: fp8"),
    ({}, "fp8", "fp8 was asked for and the model is quantized to int8", "precision: fp8"),
    ({}, "fp16", "fp16 was asked for and the model is quantized to int8", "`precision: int8`"),
    ({}, "fp32", "fp32 was asked for and the model is quantized to int8", "`precision: int8`"),
    ({**FLOAT, "floats": np.float16}, "fp32", "the model is fp16", "take convert_precision out"),
    (
        {"integers": np.uint8},
        "int8",
        "QuantizeLinear 'QuantizeLinear_xq': unsigned",
        "target: tensorrt",
    ),
    ({"zero": 7}, "best", "'QuantizeLinear_xq': asymmetric: zero point 7", "target: tensorrt"),
]


@pytest.mark.parametrize(("changes", "asked", "message", "hint"), WRONG)
def test_a_model_that_does_not_fit_the_intent(prepared, changes, asked, message, hint):
    with pytest.raises(StepError) as error:
        prepared(layer(**changes), asked)
    assert message in error.value.message
    assert hint in error.value.hint


def test_scales_get_the_type_of_the_rest(prepared):
    """A network under strong typing whose scales are FP32 computes in FP32 behind them."""
    source = layer()
    found = prepared(source, "int8")
    model = onnx.load(found.path)
    scales = {
        node.input[1]
        for node in model.graph.node
        if "Quantize" in node.op_type or "Dequ" in node.op_type
    }
    types = {t.data_type for t in model.graph.initializer if t.name in scales}
    assert types == {onnx.TensorProto.FLOAT16}
    assert opset_of(model) >= 19
    assert sqnr_db(computed(source, noise()), computed(model, noise())) > 45


def test_older_quantized_models_are_upgraded(prepared):
    heard = Heard()
    source = layer(opset=13)
    model = onnx.load(prepared(source, "int8", observer=heard).path)
    assert any("no scales in fp16" in text for text in heard.warnings)
    assert sqnr_db(computed(source, noise()), computed(model, noise())) > 45


@pytest.mark.parametrize("factor", [1e-2, 1e-3, 1e-4, 1e-6])
def test_small_scales_survive_fp16(factor):
    """Weights of 0.1 * factor: below 6e-5 a scale in fp16 has few bits, below 6e-8 it would be 0."""
    source = layer(bias="")
    scale = next(tensor for tensor in source.graph.initializer if tensor.name == "w_scale")
    small = onnx.numpy_helper.to_array(scale) * factor * np.linspace(0.5, 1, 8, dtype=np.float32)
    scale.CopyFrom(onnx.numpy_helper.from_array(small, "w_scale"))
    model = onnx.ModelProto()
    model.CopyFrom(source)
    applied(fit_scales_to_half, model)
    found = next(each for each in model.graph.initializer if each.name == "w_scale")
    values = onnx.numpy_helper.to_array(found)
    assert (values == values.astype(np.float16)).all()
    assert (values >= small).all()
    wanted = 40 if WEIGHT_SCALE * factor * 127 > 1e-5 else 3 if factor == 1e-6 else 25
    assert sqnr_db(computed(source, noise()), computed(model, noise())) > wanted


def test_weights_that_two_read_are_fitted_once():
    once = layer(bias="")
    scale = next(tensor for tensor in once.graph.initializer if tensor.name == "w_scale")
    scale.CopyFrom(onnx.numpy_helper.from_array(np.full(8, 3.3e-7, np.float32), "w_scale"))
    twice = onnx.ModelProto()
    twice.CopyFrom(once)
    twice.graph.initializer.add().CopyFrom(scale)
    twice.graph.initializer[-1].name = "same_scale"
    grid = ["wq", "same_scale", "w_zero"]
    twice.graph.node.append(onnx.helper.make_node("DequantizeLinear", grid, ["again"], axis=0))
    assert applied(fit_scales_to_half, once) == 1
    assert applied(fit_scales_to_half, twice) == 2
    assert (_stored(once) == _stored(twice)).all()
    assert (_stored(once) != _stored(layer(bias=""))).any()


def _stored(model):
    tensor = next(tensor for tensor in model.graph.initializer if tensor.name == "wq")
    return onnx.numpy_helper.to_array(tensor)


def test_small_scales_are_fitted_before_the_conversion(prepared):
    source = layer(bias="")
    scale = next(tensor for tensor in source.graph.initializer if tensor.name == "w_scale")
    small = np.full(8, 3.3e-7, np.float32)
    scale.CopyFrom(onnx.numpy_helper.from_array(small, "w_scale"))
    found = computed(onnx.load(prepared(source, "int8").path), noise())
    assert sqnr_db(computed(source, noise()), found) > 30


def test_fp8_has_the_rest_in_fp16(prepared):
    source = fp8_layer()
    found = prepared(source, "best")
    assert found.precision == "fp8"
    assert found.facts["expectation"] == "1 of 1 convolutions compute in FP8"
    assert sqnr_db(computed(source, noise()), computed(onnx.load(found.path), noise())) > 30


@pytest.mark.parametrize("operator", ["HardSwish", "Mish"])
def test_what_the_parser_takes_in_no_bf16_stays_in_fp32(prepared, operator):
    model = layer(**FLOAT)
    model.graph.node[-1].output[0] = "before"
    model.graph.node.append(onnx.helper.make_node(operator, ["before"], ["y"], "activation"))
    assert prepared(model, "bf16").facts["kept_in_fp32"] == ["activation"]
    assert prepared(model, "fp16").facts["kept_in_fp32"] == []


def test_the_sentence_counts_and_says_why_not():
    model = layer()
    sentence = "0 of 1 convolutions compute in INT8, 1 in FP32: Conv_y "
    assert expectation(model, "int8") == "1 of 1 convolutions compute in INT8"
    assert counts(model) == {"int8": 1}
    cases = {
        "(its weights are not quantized)": {"quantized_weight": False},
        "(its input is not quantized)": {"quantized_input": False},
        "(not quantized)": FLOAT,
    }
    for reason, changes in cases.items():
        assert expectation(layer(**changes), "int8") == sentence + reason
    assert "(left out of quantization)" in expectation(layer(**FLOAT), "int8", ["Conv_y"])
    assert "matrix products" in expectation(layer(operator="Gemm", axis=1), "int8")


def test_the_sentence_follows_what_moves_values():
    model = layer()
    model.graph.node[-1].input[0] = "pooled"
    pool = onnx.helper.make_node("MaxPool", ["xd"], ["pooled"], "pool", kernel_shape=[1, 1])
    model.graph.node.insert(len(model.graph.node) - 1, pool)
    assert counts(model) == {"int8": 1}
    model.graph.node[-2].CopyFrom(onnx.helper.make_node("Relu", ["xd"], ["pooled"], "relu"))
    assert counts(model) == {"fp32": 1}


def test_products_of_two_activations_are_told_apart():
    model = layer(operator="MatMul", axis=1)
    model.graph.node.append(onnx.helper.make_node("MatMul", ["x", "y"], ["z"], "attention"))
    assert "attention (a product of two activations, not quantized)" in expectation(model, "int8")
