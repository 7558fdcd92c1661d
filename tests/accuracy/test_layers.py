"""Where the error starts: a layer with a wrong scale ranks first, those behind it do not."""

import numpy as np
import pytest
from tiny_networks import INPUTS, Noise, apply, artifact, feed, onnx_file, torch_artifact

from optcli import data, workers
from optcli.accuracy.layers import LayersRequest, compare, process
from optcli.accuracy.layers.measured import Tally, worst_channel
from optcli.artifact import Artifact, Format
from optcli.models.formats import exported as exported_format
from optcli.models.formats import onnx as onnx_format
from optcli.models.formats import openvino as openvino_format
from optcli.models.formats import openvino_zero_points
from optcli.passes.convert_precision import ConvertPrecision
from optcli.passes.export import Export
from optcli.passes.export_onnx import ExportOnnx
from optcli.passes.quantize_dynamic import QuantizeDynamic
from optcli.passes.quantize_nncf import QuantizeNncf
from optcli.passes.quantize_onnxruntime import QuantizeOnnxruntime
from optcli.passes.quantize_pt2e import QuantizePt2e
from optcli.passes.to_openvino import ToOpenvino
from optcli.results.outcomes import LayerError, Layers
from optcli.settings import TensorSpec

INPUT = INPUTS["Conv"]
SOUND_DB = 25.0


def row(**given):
    first = {"tensor": "t", "node": "conv", "operator": "Conv", "shape": (1, 2), "kind": "activation"}
    return LayerError(**{**first, "own_db": 5.0, "sqnr_db": 5.0, **given})


def made(format=Format.ONNX, **more):
    return Artifact("k", format, None, "fp32", 1, "d", **more)


def test_signal_to_noise_in_decibel():
    tally = Tally()
    tally.add(np.array([3.0, 4.0]), np.array([3.0, 4.5]))
    tally.add(np.array([0.0]), np.array([0.0]))
    assert tally.sqnr_db == pytest.approx(20.0)
    assert tally.factor == pytest.approx(27 / 25)
    assert tally.cosine == pytest.approx(27 / (5 * 29.25**0.5))


def test_equal_tensors_have_no_noise_and_broken_ones_no_figures():
    equal, broken = Tally(), Tally()
    equal.add(np.ones(3), np.ones(3))
    broken.add(np.ones(3), np.array([1.0, np.nan, 1.0]))
    assert (equal.sqnr_db, equal.finite, equal.cosine) == (None, True, pytest.approx(1.0))
    assert (broken.sqnr_db, broken.finite, broken.cosine) == (None, False, None)


def test_the_worst_channel_is_named():
    wanted = np.ones((3, 4))
    found = wanted * np.array([[1.0], [1.1], [1.01]])
    assert worst_channel(wanted, found, 0) == (1, pytest.approx(20.0))
    assert worst_channel(wanted, wanted, 0) is None


def test_what_is_not_finite_ranks_before_all_and_what_is_equal_behind():
    rows = [row(own_db=None), row(own_db=-3.0), row(own_db=None, finite=False), row(own_db=40.0)]
    ranked = sorted(rows, key=lambda each: each.rank)
    assert [(each.own_db, each.finite) for each in ranked] == [
        (None, False),
        (-3.0, True),
        (40.0, True),
        (None, True),
    ]


def test_layers_are_named_once_the_worst_first():
    found = Layers(rows=(row(node="b", kind="weight"), row(node="b"), row(node=""), row(node="a")))
    assert found.worst_nodes() == ("b", "a")


@pytest.mark.parametrize(
    ("given", "made_by", "expected"),
    [
        ({}, {"step": "quantize_nncf"}, "{quantize_nncf: {ignored_names: [conv]}}"),
        (  # what it gives is quantized for the layer that reads it
            {"operator": "Mul", "readers": ("next",)},
            {"step": "quantize_nncf"},
            "{ignored_names: [next]}",
        ),
        ({"readers": ("next",)}, {"step": "quantize_nncf"}, "{ignored_names: [conv, next]}"),
        (
            {"operator": "Mul", "readers": ("next",)},
            {"step": "quantize_onnxruntime"},
            "{ignored_names: [conv, next]}",
        ),
        ({"readers": ("next",)}, {"step": "weights_only"}, "{ignored_names: [conv]}"),
        ({}, {"step": "quantize_pt2e"}, "{quantize_pt2e: {ignored_modules: [conv]}}"),
        ({"own_db": 12.0}, {}, "leave conv in floating point"),
        ({"own_db": 0.1, "factor": 2.0, "cosine": 0.999}, {}, "2.00 times what they should be"),
        ({"own_db": 0.1, "factor": 2.0, "cosine": 0.7}, {}, "leave conv in floating point"),
        ({"clipped": 0.02}, {"step": "quantize_nncf"}, "more calibration samples"),
        (
            {"clipped": 0.02},
            {"step": "quantize_onnxruntime", "options": {"method": "percentile"}},
            "{method: minmax}",
        ),
        (
            {"kind": "weight", "own_db": 30.0, "channel": 3, "channel_db": 8.0},
            {"step": "quantize_onnxruntime", "options": {"per_channel": False}},
            "{per_channel: true}",
        ),
        ({"own_db": None}, {"step": "quantize_nncf"}, ""),
    ],
)
def test_one_action_in_the_words_of_the_pass(given, made_by, expected):
    found = process.advice_for(row(**given), made_by)
    assert expected in found if expected else not found


def test_what_is_not_quantized_is_not_told_to_stay_in_floats():
    assert process.advice_for(row(), {}, "fp32") == "leave conv as it was"


def test_what_cannot_be_compared_says_why():
    compiled = LayersRequest(made(), made(Format.AOTI), INPUT, {}, None)
    assert "made from" in compare(compiled).reason
    network = LayersRequest(made(Format.TORCH), made(), INPUT, {}, None)
    assert "cannot be matched" in compare(network).reason


@pytest.fixture
def layers(monkeypatch, tmp_path):
    """Compare in this process, on noise."""
    monkeypatch.setattr(data, "open", lambda *_: Noise(INPUT, count=4))

    def run(function, request, gives, **_):
        assert function == "optcli.accuracy.layers.process:serve"
        return process.serve(request, None)

    monkeypatch.setattr(workers, "run", run)
    settings = data.DataSettings(source="npz:x.npz")
    return lambda baseline, child, **more: compare(
        LayersRequest(baseline, child, INPUT, settings, tmp_path, samples=4, **more)
    )


@pytest.fixture(scope="module")
def onnx_floats(tmp_path_factory):
    folder = tmp_path_factory.mktemp("onnx")
    return apply(ExportOnnx(exporter="dynamo"), torch_artifact(folder, "Conv"), folder / "onnx", INPUT)


def quantized(how, source, out):
    return apply(how, source, out, INPUT, calibration=Noise(INPUT, count=8))


def doubled_onnx(source, out, node):
    """The artifact with the scale of one convolution's weights doubled."""
    from onnx import numpy_helper

    model = onnx_format.open(source.path)
    maker = {name: each for each in model.graph.node for name in each.output}
    conv = next(each for each in model.graph.node if each.name.removesuffix("_quant") == node)
    scale = conv.input[4] if conv.op_type == "QLinearConv" else maker[conv.input[1]].input[1]
    tensor = next(each for each in model.graph.initializer if each.name == scale)
    tensor.CopyFrom(numpy_helper.from_array(2 * numpy_helper.to_array(tensor), scale))
    return saved(onnx_format, model, out, Format.ONNX)


def saved(format, model, out, kind):
    out.mkdir()
    format.save(model, out)
    return artifact(out, kind, ["output"])


def require_first(found, node):
    """The layer's rows come first, and every other layer adds little."""
    assert found.worst_nodes()[0] == node
    assert {each.kind for each in found.rows if each.node == node and each.own_db < 6} == {
        "activation",
        "weight",
    }
    assert all(each.rank > SOUND_DB for each in found.rows if each.node != node)
    assert min(each.sqnr_db for each in found.rows if each.node != node and each.sqnr_db) < SOUND_DB


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    [QuantizeOnnxruntime(), QuantizeOnnxruntime(format="qoperator"), QuantizeNncf()],
    ids=["qdq", "qoperator", "nncf"],
)
def test_a_doubled_scale_in_onnx_ranks_first(how, onnx_floats, layers, tmp_path):
    sound = quantized(how, onnx_floats, tmp_path / "int8")
    before = layers(onnx_floats, sound)
    assert before.compared > 10
    assert before.samples == 4
    assert all(each.rank > SOUND_DB for each in before.rows)
    for node in ("node_conv2d", "node_conv2d_2"):
        bad = doubled_onnx(sound, tmp_path / f"bad-{node}", node)
        require_first(layers(onnx_floats, bad), node)
        assert layers(sound, bad).worst_nodes()[0].removesuffix("_quant") == node


@pytest.mark.slow
def test_a_doubled_scale_in_openvino_ranks_first(onnx_floats, layers, tmp_path):
    from openvino import opset13

    floats = apply(ToOpenvino(), onnx_floats, tmp_path / "ir", INPUT)
    sound = quantized(QuantizeNncf(), floats, tmp_path / "int8")
    rows = layers(floats, sound).rows
    assert rows
    assert all(each.rank > SOUND_DB for each in rows)
    model = openvino_format.open(sound.path)
    conv = [each for each in model.get_ordered_ops() if each.get_type_name() == "Convolution"][2]
    twice = opset13.multiply(conv.input_value(1), opset13.constant(np.float32(2)))
    conv.input(1).replace_source_output(twice.output(0))
    bad = saved(openvino_format, model, tmp_path / "bad", Format.OPENVINO)
    require_first(layers(floats, bad), conv.get_friendly_name())


@pytest.mark.long
@pytest.mark.slow
def test_zero_points_that_moved_into_biases_are_no_errors(shared, tmp_path):
    from optcli.accuracy.layers import openvino as room

    source = onnx_file(shared / "models" / "vit_tiny_fashion.onnx", tmp_path / "onnx")
    image = (TensorSpec(name="input", shape=("batch", 3, 32, 32)),)
    floats = apply(ToOpenvino(), source, tmp_path / "ir", image)
    moved = apply(
        QuantizeNncf(samples=4), floats, tmp_path / "int8", image, calibration=Noise(image, count=4)
    )
    model = openvino_format.open(moved.path)
    assert openvino_zero_points.move_back(model) > 3
    plain = saved(openvino_format, model, tmp_path / "plain", Format.OPENVINO)
    feeds = [feed(image, 1, seed=seed) for seed in range(2)]
    rows, others = (room.compare(floats, each, feeds, 1).rows for each in (moved, plain))
    assert len(rows) > 50
    assert [row.tensor for row in rows] == [row.tensor for row in others]
    assert [row.rank for row in rows] == pytest.approx([row.rank for row in others], abs=0.5)
    assert min(row.rank for row in rows) > 10


@pytest.mark.long
@pytest.mark.slow
def test_a_doubled_scale_in_an_exported_program_ranks_first(layers, tmp_path):
    source = torch_artifact(tmp_path, "Conv")
    floats = apply(Export(), source, tmp_path / "exported", INPUT)
    sound = quantized(QuantizePt2e(), floats, tmp_path / "int8")
    program = exported_format.open(sound.path)
    program.state_dict.get("_scale_2", program.constants.get("_scale_2")).mul_(2)
    bad = saved(exported_format, program, tmp_path / "bad", Format.EXPORTED)
    require_first(layers(floats, bad), "right")
    require_first(layers(source, bad), "right")


@pytest.mark.slow
def test_a_module_with_other_weights_ranks_first_in_torch(layers, tmp_path):
    import torch

    from optcli.models.formats import torch as torch_format

    source = torch_artifact(tmp_path, "Conv")
    model = torch_format.open(source.path)
    with torch.no_grad():
        model.second.weight.mul_(2)
    (tmp_path / "bad").mkdir()
    description = torch_format.read(source.path)
    torch_format.save(model, tmp_path / "bad", description, source.path / torch_format.CODE)
    found = layers(source, artifact(tmp_path / "bad", Format.TORCH, ["output"]))
    assert found.worst_nodes()[0] == "second"
    assert {each.node for each in found.rows if each.own_db is not None} == {"second"}


@pytest.mark.slow
def test_dynamic_quantization_shows_in_the_layer_it_quantizes(layers, tmp_path):
    source = torch_artifact(tmp_path, "Conv")
    child = apply(QuantizeDynamic(), source, tmp_path / "int8", INPUT)
    found = layers(source, child, made_by={"step": "quantize_dynamic", "options": {}})
    assert {each.node for each in found.rows if each.own_db is not None} == {"head"}
    assert found.rows[0].advice == "{quantize_dynamic: {ignored_names: [head]}}"


@pytest.mark.slow
def test_half_precision_is_near_in_every_layer(onnx_floats, layers, tmp_path):
    half = apply(ConvertPrecision(precision="fp16"), onnx_floats, tmp_path / "fp16", INPUT)
    found = layers(onnx_floats, half)
    assert found.compared > 10
    assert found.reason is None
    assert all(each.rank > 50 for each in found.rows)


@pytest.mark.slow
def test_layers_of_other_shapes_are_not_compared(onnx_floats, layers, tmp_path):
    import onnx
    from onnx import numpy_helper

    model = onnx_format.open(onnx_floats.path)
    for tensor in model.graph.initializer:  # half of the first layer's channels
        if tensor.name in ("first.weight", "first.bias"):
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)[:8], tensor.name))
        if tensor.name in ("left.weight", "right.weight"):
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)[:, :8], tensor.name))
        if tensor.name == "second.weight":
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)[:16], tensor.name))
        if tensor.name == "second.bias":
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)[:16], tensor.name))
        if tensor.name == "head.weight":
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)[:, :16], tensor.name))
    del model.graph.value_info[:]
    assert isinstance(model, onnx.ModelProto)
    found = layers(onnx_floats, saved(onnx_format, model, tmp_path / "pruned", Format.ONNX))
    assert "[1, 8, 16, 16]" in found.reason


@pytest.mark.slow
def test_weights_are_not_looked_for_along_every_path(monkeypatch):
    """Each branch doubles the paths from a product of activations back to the input."""
    from openvino import opset13

    value = opset13.parameter([2, 2], np.float32)
    for _ in range(40):
        value = opset13.multiply(opset13.add(value, value), opset13.subtract(value, value))
    product = opset13.matmul(value, value, False, False)
    calls = []
    looking = openvino_format.values_of

    def counted(port):
        calls.append(port)
        assert len(calls) < 500, "they double"
        return looking(port)

    monkeypatch.setattr(openvino_format, "values_of", counted)
    assert openvino_format.values_of(product.input_value(1)) is None
    weights = opset13.multiply(
        opset13.convert(opset13.constant(np.array([[1, 2]], np.int8)), "f32"),
        opset13.constant(np.float32(0.5)),
    )
    assert openvino_format.values_of(weights.output(0)).tolist() == [[0.5, 1.0]]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("form", ["onnx", "openvino"])
def test_without_its_readers_a_tensor_is_no_longer_quantized(onnx_floats, layers, tmp_path, form):
    floats = onnx_floats
    if form == "openvino":
        floats = apply(ToOpenvino(), floats, tmp_path / "ov", INPUT)
    sound = quantized(QuantizeNncf(), floats, tmp_path / "int8")
    rows = [each for each in layers(floats, sound).rows if each.kind == "activation"]
    worst = next(each for each in rows if each.readers and each.node)
    less = quantized(QuantizeNncf(ignored_names=worst.readers), floats, tmp_path / "less")
    after = next(each for each in layers(floats, less).rows if each.tensor == worst.tensor)
    assert after.readers == ()


@pytest.mark.slow
def test_what_a_layer_gave_is_kept_though_the_next_one_writes_into_it():
    import torch

    from optcli.accuracy.layers import torch as room

    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(inplace=True)).eval()
    image = torch.randn(1, 3, 8, 8)
    graph = torch.export.export(network, (image,)).module()
    nodes = {room._operator(node): node for node in graph.graph.nodes}
    assert "relu_" in nodes
    found = room._run_program(graph, (image,), {})
    with torch.no_grad():
        assert torch.equal(found[nodes["conv2d"]], network[0](image))
    assert found[nodes["conv2d"]].min() < 0 == found[nodes["relu_"]].min()
