"""Files that come in fp16 are quantized from the same numbers in fp32; their ends stay fp16."""

import foreign_models
import numpy as np
import onnx
import pytest
from onnx import TensorProto
from tiny_networks import Heard, Noise, apply, artifact, feed, sqnr_db

from optcli.artifact import Format
from optcli.models.formats import onnx as onnx_format
from optcli.models.onnx_graphs.protobuf import graphs, output_names, precision_of
from optcli.passes._onnx.models import widened
from optcli.passes.quantize_dynamic import QuantizeDynamic
from optcli.passes.quantize_nncf import QuantizeNncf
from optcli.passes.quantize_onnxruntime import QuantizeOnnxruntime
from optcli.passes.weights_only import WeightsOnly
from optcli.runners.onnxruntime import OnnxruntimeRunner

pytestmark = pytest.mark.slow


def taken(folder, model):
    folder.mkdir(parents=True)
    onnx_format.save(model, folder)
    return artifact(folder, Format.ONNX, output_names(model), precision_of(model))


def outputs(made, inputs, values):
    with OnnxruntimeRunner(threads=1).open(made, inputs) as model:
        return next(iter(model.run(values).values()))


@pytest.mark.parametrize(
    "one", [QuantizeOnnxruntime(), QuantizeNncf(), QuantizeDynamic(), WeightsOnly()]
)
@pytest.mark.parametrize("name", ["half", "half-9"])
def test_fp16_files_are_quantized(tmp_path, name, one):
    foreign = foreign_models.FILES[name]()
    source, heard = taken(tmp_path / "source", foreign.model), Heard()
    assert source.precision == "fp16"
    made = apply(one, source, tmp_path / "made", foreign.inputs, observer=heard,
                 calibration=Noise(foreign.inputs))  # fmt: skip
    assert made.precision.startswith("int8")
    assert any("widened to fp32" in warning for warning in heard.warnings)
    values = feed(foreign.inputs, 4)
    wanted, found = (outputs(each, foreign.inputs, values) for each in (source, made))
    assert sqnr_db(wanted, found) > 20


def test_no_number_is_changed_and_the_ends_stay_fp16(tmp_path):
    foreign = foreign_models.half()
    foreign.model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    del foreign.model.graph.node[-2:]  # the cast and the Softmax behind it
    foreign.model.graph.node[-1].output[0] = "result"
    onnx.checker.check_model(foreign.model, full_check=True)
    source = taken(tmp_path / "half", foreign.model)
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in foreign.model.graph.initializer}
    made = taken(tmp_path / "full", widened(onnx_format.open(source.path)))
    model = onnx_format.open(made.path)
    onnx.checker.check_model(model, full_check=True)
    for tensor in model.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor)
        assert values.dtype == np.float32
        np.testing.assert_array_equal(values, weights[tensor.name].astype(np.float32))
    values = feed(foreign.inputs, 3)
    wanted, found = (outputs(each, foreign.inputs, values) for each in (source, made))
    assert found.dtype == np.float16
    assert sqnr_db(wanted.astype(np.float32), found.astype(np.float32)) > 50


def test_what_lies_inside_if_and_loop_is_widened_too():
    foreign = foreign_models.branches()
    halved = onnx.ModelProto()
    halved.CopyFrom(foreign.model)
    for graph in graphs(halved.graph):
        for tensor in graph.initializer:
            values = onnx.numpy_helper.to_array(tensor)
            if values.dtype == np.float32:
                tensor.CopyFrom(onnx.numpy_helper.from_array(values.astype(np.float16), tensor.name))
        for value in (*graph.input, *graph.output):
            if value.type.tensor_type.elem_type == TensorProto.FLOAT:
                value.type.tensor_type.elem_type = TensorProto.FLOAT16
    onnx.checker.check_model(halved, full_check=True)
    made = widened(halved)
    onnx.checker.check_model(made, full_check=True)
    inside = [g for g in graphs(made.graph) if g is not made.graph]
    kinds = {value.type.tensor_type.elem_type for graph in inside for value in graph.output}
    assert len(inside) == 3
    assert TensorProto.FLOAT16 not in kinds
