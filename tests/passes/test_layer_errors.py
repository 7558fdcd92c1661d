"""A layer that integers would ruin stays in floating point, and no other does."""

import numpy as np
import onnx
import pytest
from tiny_networks import Noise, apply, artifact, feed

from optcli.artifact import RUINED_LAYERS, Format
from optcli.errors import StepError
from optcli.models.formats import onnx as onnx_format
from optcli.passes._quantization.layer_errors import neighbours_of, ruined_layers
from optcli.passes.quantize_nncf import QuantizeNncf
from optcli.passes.quantize_onnxruntime import QuantizeOnnxruntime
from optcli.runners.onnxruntime import OnnxruntimeRunner
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow
IMAGE = (TensorSpec(name="image", shape=("batch", 3, 24, 24)),)

# Swish behind each convolution, as in YOLO and EfficientNet; `depthwise` reads each channel by itself.
NETWORK = """
<ir_version: 8, opset_import: ["" : 17]>
network (float[batch, 3, 24, 24] image) => (float[batch, 8, 24, 24] result) {
  stem = Conv <pads = [1, 1, 1, 1]> (image, stem_weight)
  stem_gate = Sigmoid (stem)
  stem_swish = Mul (stem, stem_gate)
  depthwise = Conv <pads = [1, 1, 1, 1], group = 8> (stem_swish, depthwise_weight)
  depthwise_gate = Sigmoid (depthwise)
  depthwise_swish = Mul (depthwise, depthwise_gate)
  wide = Conv (depthwise_swish, wide_weight)
  wide_gate = Sigmoid (wide)
  wide_swish = Mul (wide, wide_gate)
  deep = Conv <pads = [1, 1, 1, 1]> (wide_swish, deep_weight)
  deep_gate = Sigmoid (deep)
  deep_swish = Mul (deep, deep_gate)
  result = Conv (deep_swish, result_weight)
}
"""


def network(folder, loud):
    """The network; with `loud`, one channel of the stem is 300 times as large as the others."""
    random = np.random.default_rng(0)

    def layer(*shape):
        return random.normal(0, 2 * np.prod(shape[1:]) ** -0.5, shape).astype(np.float32)

    weights = {
        "stem_weight": layer(8, 3, 3, 3), "depthwise_weight": layer(8, 1, 3, 3),
        "wide_weight": layer(8, 8, 1, 1), "deep_weight": layer(8, 8, 3, 3),
        "result_weight": layer(8, 8, 1, 1),
    }  # fmt: skip
    if loud:
        weights["stem_weight"][0] *= 300
        weights["depthwise_weight"][0] /= 300
    model = onnx.parser.parse_model(NETWORK)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(each, name) for name, each in weights.items()
    )
    for node in model.graph.node:
        node.name = node.output[0]
    onnx_format.save(model, folder)
    return artifact(folder, Format.ONNX, ["result"])


@pytest.fixture(scope="module", params=[True, False], ids=["loud", "even"])
def source(request, tmp_path_factory):
    return network(tmp_path_factory.mktemp("network"), request.param), request.param


def quantized(source, out, kind, **options):
    return apply(kind(**options), source, out, IMAGE, calibration=Noise(IMAGE, count=8))


def sqnr_db(made, source):
    values = feed(IMAGE, 4, seed=9)
    with (
        OnnxruntimeRunner(threads=1).open(made, IMAGE) as mine,
        OnnxruntimeRunner(threads=1).open(source, IMAGE) as theirs,
    ):
        right = theirs.run(values)["result"].astype(np.float64)
        noise = mine.run(values)["result"] - right
    return 10 * np.log10(right.var() / np.square(noise).mean())


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (QuantizeOnnxruntime, {}),
        (QuantizeOnnxruntime, {"format": "qoperator"}),
        (QuantizeOnnxruntime, {"target": "tensorrt"}),
        (QuantizeNncf, {}),
        (QuantizeNncf, {"target": "tensorrt"}),
    ],
)
def test_only_the_layer_that_would_be_ruined_stays_in_floats(source, tmp_path, kind, options):
    model, loud = source
    made = quantized(model, tmp_path / "int8", kind, **options)
    assert [*made.facts[RUINED_LAYERS]] == (["depthwise"] if loud else [])
    assert all(decibels < 10 for decibels in made.facts[RUINED_LAYERS].values())
    assert sqnr_db(made, model) > 22
    assert made.facts["quantized_operators"]["Conv"] >= 3
    if loud:
        all_of_it = quantized(model, tmp_path / "all", kind, least_layer_sqnr=None, **options)
        assert sqnr_db(all_of_it, model) < 15
        assert all_of_it.facts["quantized_operators"]["Conv"] == 5


@pytest.mark.parametrize("kind", [QuantizeOnnxruntime, QuantizeNncf])
def test_a_model_of_which_no_layer_is_left_says_which_option_decides(source, tmp_path, kind):
    model, _ = source
    with pytest.raises(StepError, match=r"each one less than 200 dB: \w+ \(\S+ dB\), ") as failure:
        quantized(model, tmp_path / "int8", kind, least_layer_sqnr=200)
    assert all(name in failure.value.message for name in ("stem", "depthwise", "wide"))
    assert "`least_layer_sqnr`" in failure.value.hint


def test_layers_that_the_recipe_names_are_not_replaced_by_others(tmp_path):
    model = network(tmp_path, loud=True)
    with pytest.raises(StepError, match=r"no layer is left to quantize: .* depthwise"):
        quantized(model, tmp_path / "int8", QuantizeOnnxruntime, names=("depthwise",))


def test_convolutions_before_swish_compute_on_integers(source, tmp_path):
    """NNCF leaves what stands between them in floating point, and ONNX Runtime then all of them."""
    model, loud = source
    made = quantized(model, tmp_path / "int8", QuantizeNncf)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(
        made.path / onnx_format.FILE, options, providers=["CPUExecutionProvider"]
    )
    kinds = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert kinds.count("QLinearConv") == (2 if loud else 4)  # not the last one, whose output is floats
    assert kinds.count("QLinearSigmoid") == kinds.count("QLinearMul") == (2 if loud else 4)
    types = {tensor.name: tensor.data_type for tensor in onnx_format.open(made.path).graph.initializer}
    nodes = onnx_format.open(made.path).graph.node
    points = {types[node.input[2]] for node in nodes if node.op_type == "QuantizeLinear"}
    assert points == {onnx.TensorProto.UINT8}


def test_what_leads_to_a_layer_goes_back_to_the_layer_or_the_join_before():
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[1, 4, 8, 8] x) => (float[1, 4, 8, 8] y, float[1, 4, 8, 8] z) {
      one = Conv (x, w)
      gate = Sigmoid (one)
      swish = Mul (one, gate)
      other = Relu (swish)
      two = Conv (swish, w)
      sum = Add (two, swish)
      three = Conv (sum, w)
      y = Relu (three)
      z = Relu (other)
    }
    """
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((4, 4, 1, 1), np.float32), "w"))
    for node in model.graph.node:
        node.name = node.output[0]
    assert neighbours_of(model, {"two"}) == {"one", "gate", "swish", "other", "two", "sum"}
    assert neighbours_of(model, {"three"}) == {"sum", "three"}


def test_a_layer_that_gives_a_constant_has_no_ratio(tmp_path):
    model = network(tmp_path, loud=False)
    made = quantized(model, tmp_path / "int8", QuantizeOnnxruntime)
    still = [{"image": np.zeros((1, 3, 24, 24), np.float32)}]
    models = onnx_format.open(model.path), onnx_format.open(made.path)
    assert ruined_layers(*models, still, 1000, 1) == {}
    moving = [{"image": Noise(IMAGE)[0].inputs["image"][None]}]
    assert {*ruined_layers(*models, moving, 1000, 1)} >= {"depthwise", "wide", "deep"}
