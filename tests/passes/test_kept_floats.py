"""What is left in floating point stays there, in ONNX Runtime as in OpenVINO."""

import numpy as np
import pytest
from quantized_onnx import applied
from tiny_networks import Noise, apply, artifact, sqnr_db

from optcli.artifact import Format
from optcli.models.formats import onnx as onnx_format
from optcli.models.onnx_graphs.graph import read, written
from optcli.passes._quantization.integer_chains import keep_floats
from optcli.passes.quantize_nncf import QuantizeNncf
from optcli.passes.quantize_onnxruntime import QuantizeOnnxruntime
from optcli.runners.onnxruntime import OnnxruntimeRunner
from optcli.runners.openvino import OpenvinoRunner
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow
INPUTS = (TensorSpec(name="image", shape=("batch", 8, 12, 12)),)
OPTIONS = {"ignored_names": ("uneven",)}


@pytest.fixture
def network(tmp_path):
    """Three convolutions; the weights of the middle one, depthwise, differ by 1000 among channels."""
    from onnx import TensorProto, helper, numpy_helper

    generator = np.random.default_rng(0)
    shapes = {"before": (8, 8, 1, 1), "uneven": (8, 1, 3, 3), "after": (8, 8, 1, 1)}
    weights = {name: generator.standard_normal(shape) for name, shape in shapes.items()}
    factors = np.logspace(0, 3, 8)
    weights["uneven"] *= factors[:, None, None, None]
    weights["after"] /= factors[None, :, None, None]
    plan = [("before", "image", "a", 1), ("uneven", "a", "b", 8), ("after", "b", "output", 1)]
    nodes = [
        helper.make_node("Conv", [source, f"{name}.weight"], [out], name, group=group)
        for name, source, out, group in plan
    ]
    sizes = {"image": 12, "output": 10}
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 8, size, size])
        for name, size in sizes.items()
    ]
    tensors = [
        numpy_helper.from_array(value.astype(np.float32), f"{name}.weight")
        for name, value in weights.items()
    ]
    graph = helper.make_graph(nodes, "uneven", ends[:1], ends[1:], tensors)
    folder = tmp_path / "network"
    folder.mkdir()
    opset = [helper.make_opsetid("", 17)]
    onnx_format.save(helper.make_model(graph, opset_imports=opset, ir_version=9), folder)
    return artifact(folder, Format.ONNX)


def outputs(made, runner):
    with runner.open(made, INPUTS) as model:
        return model.run({"image": Noise(INPUTS)[3].inputs["image"][None]})["output"]


@pytest.mark.parametrize("quantizing", [QuantizeOnnxruntime(**OPTIONS), QuantizeNncf(**OPTIONS)])
def test_what_runs_is_what_the_file_says(network, tmp_path, quantizing):
    made = apply(quantizing, network, tmp_path / "int8", INPUTS, calibration=Noise(INPUTS))
    said = outputs(made, OnnxruntimeRunner(optimization_level="disabled"))
    assert sqnr_db(said, outputs(made, OnnxruntimeRunner())) > 25
    assert sqnr_db(said, outputs(made, OpenvinoRunner(threads=1))) > 25


def test_the_float_weights_are_those_of_the_network(network, tmp_path):
    pass_ = QuantizeOnnxruntime(**OPTIONS)
    made = apply(pass_, network, tmp_path / "int8", INPUTS, calibration=Noise(INPUTS))
    model = onnx_format.open(made.path)
    (uneven,) = (node for node in model.graph.node if node.name == "uneven")
    assert uneven.input[1] in {tensor.name for tensor in model.graph.initializer}
    scales = {t.name: t.dims for t in model.graph.initializer}
    (back,) = (node for node in model.graph.node if node.output[0] == uneven.input[0])
    assert back.op_type == "DequantizeLinear"
    assert list(scales[back.input[1]]) == [8]
    read = {name for node in model.graph.node for name in node.input} | {"output"}
    assert all(x.output[0] in read for x in model.graph.node if x.op_type == "DequantizeLinear")


def test_a_network_that_is_all_integers_is_left_alone(network, tmp_path):
    made = apply(QuantizeOnnxruntime(), network, tmp_path / "int8", INPUTS, calibration=Noise(INPUTS))
    model = written(read(onnx_format.open(made.path)))
    before = model.SerializeToString()
    assert applied(keep_floats, model) == 0
    assert model.SerializeToString() == before


def test_behind_a_concat_a_layer_reads_what_was_not_rounded(tmp_path):
    """OpenVINO opened no such model: a scale for each channel behind what joins channels."""
    from onnx import TensorProto, helper, numpy_helper

    generator = np.random.default_rng(0)
    shapes = {
        "left": (4, 8, 1, 1),
        "right": (4, 8, 1, 1),
        "uneven": (8, 8, 3, 3),
        "after": (8, 8, 1, 1),
    }
    tensors = [
        numpy_helper.from_array(generator.standard_normal(shape).astype(np.float32), f"{name}.weight")
        for name, shape in shapes.items()
    ]
    plan = [("left", "image", "a"), ("right", "image", "b"), ("uneven", "joined", "c")]
    nodes = [
        helper.make_node("Conv", [source, f"{name}.weight"], [out], name)
        for name, source, out in (*plan, ("after", "c", "output"))
    ]
    nodes.insert(2, helper.make_node("Concat", ["a", "b"], ["joined"], "join", axis=1))
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 8, size, size])
        for name, size in (("image", 12), ("output", 10))
    ]
    graph = helper.make_graph(nodes, "joined", ends[:1], ends[1:], tensors)
    folder = tmp_path / "network"
    folder.mkdir()
    opset = [helper.make_opsetid("", 17)]
    onnx_format.save(helper.make_model(graph, opset_imports=opset, ir_version=9), folder)
    pass_ = QuantizeOnnxruntime(**OPTIONS)
    source = artifact(folder, Format.ONNX)
    made = apply(pass_, source, tmp_path / "int8", INPUTS, calibration=Noise(INPUTS))
    model = onnx_format.open(made.path)
    (uneven,) = (node for node in model.graph.node if node.name == "uneven")
    assert uneven.input[0] == "joined"
    said = outputs(made, OnnxruntimeRunner(optimization_level="disabled"))
    assert sqnr_db(said, outputs(made, OnnxruntimeRunner())) > 25
    assert sqnr_db(said, outputs(made, OpenvinoRunner(threads=1))) > 25
