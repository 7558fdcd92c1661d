"""Transformers are told from other networks in every format that is quantized."""

import pytest
from tiny_networks import INPUTS, apply, torch_artifact

from optcli.formats import onnx as onnx_format
from optcli.formats import openvino as openvino_format
from optcli.passes._quantization import transformers
from optcli.passes.export import Export
from optcli.passes.export_onnx import ExportOnnx
from optcli.passes.to_openvino import ToOpenvino

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("name", "attends"), [("Attention", True), ("Windows", True), ("Conv", False)])
def test_it_is_seen_in_onnx_and_openvino_and_graphs(tmp_path, name, attends):
    import openvino
    import torch

    from optcli.formats import torch as torch_format
    from optcli.formats.torch_calls import example_inputs

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
