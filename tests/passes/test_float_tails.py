"""A detector quantized by each pass: scores live, its layers are integers and its tail is not."""

import numpy as np
import onnx
import pytest
from tiny_networks import INPUTS, Noise, apply, artifact, feed, torch_artifact

from optcli.artifact import OUTPUT_TAIL, Format
from optcli.errors import StepError
from optcli.models.formats import exported as exported_format
from optcli.models.formats import onnx as onnx_format
from optcli.models.formats import openvino as openvino_format
from optcli.passes.convert_precision import ConvertPrecision
from optcli.passes.quantize_aware import QuantizeAware
from optcli.passes.quantize_dynamic import QuantizeDynamic
from optcli.passes.quantize_nncf import QuantizeNncf
from optcli.passes.quantize_onnxruntime import QuantizeOnnxruntime
from optcli.passes.quantize_pt2e import QuantizePt2e
from optcli.passes.to_openvino import ToOpenvino
from optcli.runners.onnxruntime import OnnxruntimeRunner
from optcli.runners.openvino import OpenvinoRunner
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow
IMAGE = (TensorSpec(name="image", shape=("batch", 3, 32, 32)),)

# Four sides of a box, each from a distribution over 8 bins; boxes to 640 pixels, 3 scores to 1.
DETECTOR = """
<ir_version: 8, opset_import: ["" : 17]>
detector (float[batch, 3, 32, 32] image) => (float[batch, 7, 256] output0) {
  wide = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (image, first)
  wide_relu = Relu (wide)
  deep = Conv <pads = [1, 1, 1, 1]> (wide_relu, second)
  deep_relu = Relu (deep)
  sides = Conv (deep_relu, sides_weight)
  logits = Conv (deep_relu, logits_weight)
  bins = Reshape (sides, of_bins)
  bins_first = Transpose <perm = [0, 2, 1, 3]> (bins)
  shares = Softmax <axis = 1> (bins_first)
  expected = Conv (shares, numbers)
  distances = Reshape (expected, of_boxes)
  near, far = Split <axis = 1> (distances)
  low = Sub (points, near)
  high = Add (points, far)
  size = Sub (high, low)
  corners = Concat <axis = 1> (low, size)
  converted = MatMul (matrix, corners)
  boxes = Mul (converted, pixels)
  rows = Reshape (logits, of_scores)
  scores = Sigmoid (rows)
  output0 = Concat <axis = 1> (boxes, scores)
}
"""
TAIL = [
    *("bins", "bins_first", "shares", "expected", "distances", "near", "low", "high", "size"),
    *("corners", "converted", "boxes", "rows", "scores", "output0"),
]


@pytest.fixture(scope="module")
def detector(tmp_path_factory):
    random = np.random.default_rng(0)

    def layer(*shape):
        return 3 * random.normal(0, np.prod(shape[1:]) ** -0.5, shape).astype(np.float32)

    grid = np.stack(np.meshgrid(*2 * [np.arange(16, dtype=np.float32)])).reshape(1, 2, 256)
    constants = {
        "first": layer(16, 3, 3, 3) / 3, "second": layer(16, 16, 3, 3) / 3,
        "sides_weight": layer(32, 16, 1, 1), "logits_weight": layer(3, 16, 1, 1),
        "numbers": np.arange(8, dtype=np.float32).reshape(1, 8, 1, 1), "points": grid,
        "matrix": np.eye(4, dtype=np.float32), "pixels": np.float32(40),
        "of_bins": np.array([0, 4, 8, 256]), "of_boxes": np.array([0, 4, 256]),
        "of_scores": np.array([0, 3, 256]),
    }  # fmt: skip
    model = onnx.parser.parse_model(DETECTOR)
    model.graph.initializer.extend(
        onnx.numpy_helper.from_array(np.asarray(each), name) for name, each in constants.items()
    )
    for node in model.graph.node:
        node.name = node.output[0]
    folder = tmp_path_factory.mktemp("detector")
    onnx_format.save(model, folder)
    return artifact(folder, Format.ONNX, ["output0"])


@pytest.fixture(scope="module")
def openvino(detector, tmp_path_factory):
    return apply(ToOpenvino(), detector, tmp_path_factory.mktemp("openvino") / "made", IMAGE)


def quantized(source, out, kind, **options):
    return apply(kind(**options), source, out, IMAGE, calibration=Noise(IMAGE, count=8))


def scores(made):
    runner = OpenvinoRunner if made.format == Format.OPENVINO else OnnxruntimeRunner
    with runner(threads=1).open(made, IMAGE) as model:
        return model.run(feed(IMAGE, 4, seed=9))["output0"][:, 4:]


def rounded(made):
    """The values that are quantized, weights left out."""
    if made.format == Format.OPENVINO:
        nodes = openvino_format.open(made.path).get_ordered_ops()
        read = [each.input_value(0) for each in nodes if each.get_type_name() == "FakeQuantize"]
        return {each.get_node().get_friendly_name() for each in read} - {"image"}
    model = onnx_format.open(made.path)
    makers = {name: node.name for node in model.graph.node for name in node.output}
    read = [node.input[0] for node in model.graph.node if node.op_type == "QuantizeLinear"]
    return {makers[name] for name in read if name in makers}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (QuantizeOnnxruntime, {}),
        (QuantizeOnnxruntime, {"target": "tensorrt"}),
        (QuantizeNncf, {}),
        (QuantizeNncf, {"target": "tensorrt"}),
    ],
)
def test_onnx_scores_live_and_only_layers_compute_on_integers(detector, tmp_path, kind, options):
    made = quantized(detector, tmp_path / "int8", kind, **options)
    assert made.facts["quantized_operators"] == {"Conv": 4}
    assert sorted(made.facts[OUTPUT_TAIL]) == sorted(TAIL)
    assert not rounded(made) & {*TAIL}
    assert np.abs(scores(made) - scores(detector)).max() < 0.2


def test_openvino_scores_live_and_only_layers_compute_on_integers(openvino, tmp_path):
    made = quantized(openvino, tmp_path / "int8", QuantizeNncf)
    assert made.facts["quantized_operators"] == {"Convolution": 4}
    assert len(made.facts[OUTPUT_TAIL]) == len(TAIL)
    assert not rounded(made) & {*made.facts[OUTPUT_TAIL]}
    assert np.abs(scores(made) - scores(openvino)).max() < 0.2


def test_nncf_may_drop_a_cast_of_the_tail_and_refuses_a_name_that_is_wrong(detector, tmp_path):
    model = onnx_format.open(detector.path)
    last = model.graph.node[-1]
    model.graph.node.insert(
        len(model.graph.node) - 1,
        onnx.helper.make_node("Cast", [last.input[1]], ["same"], name="same", to=1),
    )
    last.input[1] = "same"
    (tmp_path / "cast").mkdir()
    onnx_format.save(model, tmp_path / "cast")
    source = artifact(tmp_path / "cast", Format.ONNX, ["output0"])
    made = quantized(source, tmp_path / "int8", QuantizeNncf, ignored_names=("wide",))
    assert made.facts["quantized_operators"] == {"Conv": 3}
    assert "same" in made.facts[OUTPUT_TAIL]
    with pytest.raises(StepError, match="wider"):
        quantized(source, tmp_path / "wrong", QuantizeNncf, ignored_names=("wider",))


def test_a_tail_in_integers_takes_a_word_and_kills_the_scores(detector, tmp_path):
    made = quantized(detector, tmp_path / "int8", QuantizeOnnxruntime, output_tail="quantized")
    assert made.facts[OUTPUT_TAIL] == []
    assert {"output0", "boxes", "shares"} <= rounded(made)
    assert len(np.unique(scores(made))) == 1


def test_what_the_recipe_names_is_quantized_although_it_lies_in_the_tail(detector, tmp_path):
    named = {"names": ("deep", "boxes"), "patterns": ("expec.*",), "types": ("Conv", "Mul")}
    made = quantized(detector, tmp_path / "named", QuantizeOnnxruntime, **named)
    assert made.facts["quantized_operators"] == {"Conv": 2, "Mul": 1}
    assert sorted(made.facts[OUTPUT_TAIL]) == sorted({*TAIL} - {"boxes", "expected"})


def test_types_are_those_of_the_rest(detector, tmp_path):
    """They say what to quantize wherever it is safe: a repair writes them, too."""
    made = quantized(detector, tmp_path / "types", QuantizeOnnxruntime, types=("Conv", "Concat"))
    assert made.facts["quantized_operators"]["Conv"] == 4
    assert not rounded(made) & {*TAIL}


def test_dynamic_quantization_leaves_a_conversion_of_boxes_in_floats(detector, tmp_path):
    products = {"types": ("MatMul", "Conv")}
    made = quantized(detector, tmp_path / "floats", QuantizeDynamic, **products)
    assert made.facts["quantized_operators"] == {"Conv": 4}
    assert sorted(made.facts[OUTPUT_TAIL]) == ["converted", "expected"]
    named = quantized(detector, tmp_path / "named", QuantizeDynamic, names=("expected",), **products)
    assert named.facts["quantized_operators"] == {"Conv": 1}


@pytest.mark.parametrize(("precision", "kept"), [("fp16", []), ("bf16", sorted(TAIL))])
def test_boxes_in_pixels_need_more_bits_than_those_of_bf16(detector, tmp_path, precision, kept):
    made = apply(ConvertPrecision(precision=precision), detector, tmp_path / "half", IMAGE)
    assert made.facts["kept_in_fp32"] == kept


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    return torch_artifact(tmp_path_factory.mktemp("network"), "Detector")


def of_integers(made):
    """How many convolutions of a graph compute on integers, and the values that are quantized."""
    nodes = exported_format.open(made.path).graph.nodes
    read = [each for each in nodes if str(each.target).startswith("quantized_decomposed.quantize")]
    return made.facts["quantized_operators"]["conv2d"], {each.args[0].name for each in read}


@pytest.mark.parametrize("kind", [QuantizePt2e, QuantizeNncf])
def test_a_pytorch_graph_joins_its_maps_in_floats(network, tmp_path, kind):
    inputs = INPUTS["Detector"]
    made = apply(kind(), network, tmp_path / "int8", inputs, calibration=Noise(inputs, count=4))
    assert of_integers(made) == (6, {"image", "silu", "relu"})
    tail = made.facts[OUTPUT_TAIL]
    assert len(tail) == 24
    assert {"cat", "softmax", "conv2d_6", "sigmoid"} <= {*tail}


@pytest.mark.long
def test_training_with_roundings_has_none_in_the_tail(network, tmp_path):
    inputs = INPUTS["Detector"]
    data = {"calibration": Noise(inputs, count=4), "training": Noise(inputs, count=4)}
    options = {
        "epochs": 1,
        "batch_size": 4,
        "threads": 1,
        "compare": "outputs",
        "distillation_weight": 1,
        "validate_epochs": False,
    }
    made = apply(QuantizeAware(**options), network, tmp_path / "made", inputs, **data)
    assert made.facts["quantized_operators"] == {"Conv": 6}
    assert {"bins/conv2d/0", "/cat/3"} <= {*made.facts[OUTPUT_TAIL]}
