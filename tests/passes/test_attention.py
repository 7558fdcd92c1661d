"""Transformers are told from other networks in every format that is quantized."""

import pytest
from tiny_networks import INPUTS, apply, torch_artifact

from optcli.models.formats import onnx as onnx_format
from optcli.models.formats import openvino as openvino_format
from optcli.passes._quantization import transformers
from optcli.passes.export import Export
from optcli.passes.export_onnx import ExportOnnx
from optcli.passes.to_openvino import ToOpenvino

pytestmark = pytest.mark.slow


@pytest.mark.long
@pytest.mark.parametrize(("name", "attends"), [("Attention", True), ("Windows", True), ("Conv", False)])
def test_it_is_seen_in_onnx_and_openvino_and_graphs(tmp_path, name, attends):
    import openvino
    import torch

    from optcli.models.formats import torch as torch_format
    from optcli.models.formats.torch_calls import example_inputs

    source = torch_artifact(tmp_path / "torch", name)
    made = apply(ExportOnnx(), source, tmp_path / "onnx", INPUTS[name])
    assert transformers.in_onnx(onnx_format.open(made.path)) is attends
    model = openvino.convert_model(str(made.path / "model.onnx"))
    assert transformers.in_openvino(model) is attends
    exported = apply(Export(), source, tmp_path / "exported", INPUTS[name])
    found = openvino_format.open(apply(ToOpenvino(), exported, tmp_path / "own", INPUTS[name]).path)
    assert transformers.in_openvino(found) is attends, "where the batch is open more stands between"
    feed = example_inputs(INPUTS[name], 2)
    with torch.no_grad():
        graph = torch.export.export(torch_format.open(source.path), tuple(feed.values())).module()
    assert transformers.in_graph(graph) is attends


@pytest.mark.parametrize(("between", "product"), [("Reshape", "MatMul"), ("Cast", "Einsum")])
def test_what_stands_between_softmax_and_product_hides_nothing(tmp_path, between, product):
    import openvino
    from onnx import TensorProto, helper, save

    shape = helper.make_tensor("shape", TensorProto.INT64, [3], [1, 4, 4])
    handed = {
        "Reshape": helper.make_node("Reshape", ["shares", "shape"], ["same"]),
        "Cast": helper.make_node("Cast", ["shares"], ["same"], to=TensorProto.FLOAT),
    }[between]
    how = {"equation": "bij,bjk->bik"} if product == "Einsum" else {}
    softmax = helper.make_node("Softmax", ["x"], ["shares"])
    last = helper.make_node(product, ["same", "x"], ["y"], **how)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4, 4]) for name in ("x", "y")]

    def model(*nodes):
        graph = helper.make_graph(nodes, "tiny", ends[:1], ends[1:], [shape])
        opset = [helper.make_opsetid("", 18)]
        return helper.make_model(graph, opset_imports=opset, ir_version=10)

    def converted(message):
        save(message, tmp_path / "model.onnx")
        return openvino.convert_model(tmp_path / "model.onnx")

    attends = model(softmax, handed, last)
    assert transformers.in_onnx(attends)
    assert transformers.in_openvino(converted(attends))
    other = model(helper.make_node("Sigmoid", ["x"], ["shares"]), handed, last)
    assert not transformers.in_onnx(other)
    assert not transformers.in_openvino(converted(other))
