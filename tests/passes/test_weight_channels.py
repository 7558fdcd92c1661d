"""All channels of weights at once: the numbers that ONNX Runtime finds one by one."""

from contextlib import nullcontext

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tiny_networks import Noise, apply, artifact

from optcli.artifact import Format
from optcli.models.formats import onnx as onnx_format
from optcli.passes._quantization import static_quantization
from optcli.passes.quantize_onnxruntime import QuantizeOnnxruntime
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow

INPUTS = (TensorSpec(name="image", shape=("batch", 3, 8, 8)),)
TINY = np.float32(np.finfo(np.float32).tiny)


def weights():
    """A convolution, a transposed one and a matrix, with channels of every kind."""
    generator = np.random.default_rng(0)
    conv = generator.standard_normal((8, 3, 3, 3)).astype(np.float32)
    conv[0] = 0  # nothing in it
    conv[1] = TINY / 4  # below what a scale can be
    conv[2] = np.abs(conv[2])
    conv[3] = -np.abs(conv[3])
    conv[4] *= np.float32(1e30)
    conv[5] = TINY * 200
    back = generator.standard_normal((8, 4, 2, 2)).astype(np.float32)
    matrix = generator.standard_normal((4 * 16 * 16, 5)).astype(np.float32)
    matrix[:, 3] = 0
    return {"conv": conv, "back": back, "matrix": matrix}


def network(folder):
    """An ONNX file with these weights."""
    folder.mkdir()
    nodes = [
        helper.make_node("Conv", ["image", "conv"], ["a"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Sigmoid", ["a"], ["b"], "squashed"),
        helper.make_node("ConvTranspose", ["b", "back"], ["c"], "second", strides=[2, 2]),
        helper.make_node("Flatten", ["c"], ["d"], "flat"),
        helper.make_node("MatMul", ["d", "matrix"], ["result"], "third"),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [helper.make_tensor_value_info("result", TensorProto.FLOAT, ["batch", 5])],
        [numpy_helper.from_array(array, name) for name, array in weights().items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx_format.save(model, folder)
    return artifact(folder, Format.ONNX, ["result"])


@pytest.mark.parametrize(
    "options",
    [
        {"target_isa": "vnni"},
        {"target_isa": "avx2"},
        {"target_isa": "arm"},
        {"target_isa": "vnni", "weight_type": "uint8"},
        {"target_isa": "vnni", "per_channel": False},
        {"target_isa": "vnni", "format": "qoperator"},
        {"target": "tensorrt"},
    ],
    ids=str,
)
def test_the_file_is_the_same(tmp_path, monkeypatch, options):
    source = network(tmp_path / "source")
    made = []
    for name in ("at_once", "one_by_one"):
        if name == "one_by_one":
            monkeypatch.setattr(static_quantization, "at_once", nullcontext)
        samples = Noise(INPUTS, count=4)
        done = apply(
            QuantizeOnnxruntime(**options), source, tmp_path / name, INPUTS, calibration=samples
        )
        made.append((done.path / onnx_format.FILE).read_bytes())
    assert made[0] == made[1]
    kinds = {each.data_type for each in onnx.load_from_string(made[0]).graph.initializer}
    assert kinds & {TensorProto.INT8, TensorProto.UINT8}


def test_channels_are_not_gone_through_one_by_one(tmp_path, monkeypatch):
    from onnxruntime.quantization import qdq_quantizer, quant_utils

    asked, rounded = [], []
    usual, rounding = qdq_quantizer.compute_data_quant_params, quant_utils.quantize_nparray

    def counted(data, *rest, **named):
        asked.append(data)
        return usual(data, *rest, **named)

    def counted_rounding(kind, array, *rest, **named):
        rounded.append(array.size)
        return rounding(kind, array, *rest, **named)

    monkeypatch.setattr(qdq_quantizer, "compute_data_quant_params", counted)
    monkeypatch.setattr(quant_utils, "quantize_nparray", counted_rounding)
    source = network(tmp_path / "source")
    apply(
        QuantizeOnnxruntime(target_isa="vnni", least_layer_sqnr=None),  # once, whatever it ruins
        source,
        tmp_path / "made",
        INPUTS,
        calibration=Noise(INPUTS, count=4),
    )
    # Of 17 channels those two that are empty and the one that is too small to have a scale.
    assert len(asked) == 3
    assert sorted(rounded)[-3:] == sorted(array.size for array in weights().values())
    assert qdq_quantizer.compute_data_quant_params is counted


def test_no_number_is_made_of_what_is_none():
    from onnxruntime.quantization import qdq_quantizer

    def refused(*_):
        raise AssertionError("asked")

    scale_of = static_quantization._scales(refused)
    for bad in (np.array([1, np.nan], np.float32), np.array([], np.float32)):
        with pytest.raises(AssertionError, match="asked"):
            scale_of(bad, TensorProto.INT8, True)
    for options in ({"rmin_override": -1.0}, {"rmax_override": 1.0}, {"min_real_range": 1.0}):
        with pytest.raises(AssertionError, match="asked"):
            scale_of(np.ones(3, np.float32), TensorProto.INT8, True, **options)
    for values in ([3.0, -7.5], [0.25], [-1e-20, 1e-21], [3e38, -1.0]):
        data = np.array(values, np.float32)
        for reduced in (False, True):
            theirs = qdq_quantizer.compute_data_quant_params(data, TensorProto.INT8, True, reduced)
            ours = scale_of(data, TensorProto.INT8, True, reduced)
            assert [each.dtype for each in ours] == [each.dtype for each in theirs]
            assert [each.tobytes() for each in ours] == [each.tobytes() for each in theirs]
