"""ONNX Runtime's rates: matrix products in fp32 and int8, convolutions in fp32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from optcli.measure.roofline.findings import Rate
from optcli.measure.roofline.timing import (
    CONVOLUTIONS,
    MATRICES,
    RateRequest,
    best_s,
    product_operations,
    product_size,
)
from optcli.models.formats import onnx as onnx_format
from optcli.workers import Channel

if TYPE_CHECKING:
    from onnx import ModelProto


def rates(request: RateRequest, channel: Channel) -> list[Rate]:
    """Matrix products and convolutions, each for as long as the request says."""
    from onnx import TensorProto

    fastest: list[Rate] = []
    for precision in ("fp32", "int8"):
        for side in MATRICES:
            model, image = _product(side, precision)
            done = _best_s(model, image, request)
            size, per_s = product_size(side), product_operations(side) / done
            fastest.append(request.rate("onnxruntime", precision, "matmul", size, per_s))
    rng = np.random.default_rng(0)
    for layer in CONVOLUTIONS:
        image = rng.random((layer.batch, layer.channels, layer.side, layer.side), dtype=np.float32)
        weights = rng.random((layer.channels, layer.channels, 3, 3), dtype=np.float32)
        model = _model("Conv", image, weights, TensorProto.FLOAT, pads=[1, 1, 1, 1])
        per_s = layer.operations / _best_s(model, image, request)
        fastest.append(request.rate("onnxruntime", "fp32", "convolution", layer.size, per_s))
    return fastest


def _best_s(model: ModelProto, image: np.ndarray, request: RateRequest) -> float:

    session = onnx_format.session(model.SerializeToString(), request.threads)
    binding = session.io_binding()
    binding.bind_cpu_input("x", image)
    binding.bind_output("y")
    return best_s(lambda: session.run_with_iobinding(binding), request.seconds)


def _product(side: int, precision: str) -> tuple[ModelProto, np.ndarray]:
    from onnx import TensorProto

    rng = np.random.default_rng(0)
    if precision == "fp32":
        first, weights = (rng.random((side, side), dtype=np.float32) for _ in range(2))
        return _model("MatMul", first, weights, TensorProto.FLOAT), first
    image = rng.integers(0, 200, (side, side)).astype(np.uint8)
    weights = rng.integers(-100, 100, (side, side)).astype(np.int8)
    return _model("MatMulInteger", image, weights, TensorProto.INT32), image


def _model(
    operator: str, image: np.ndarray, weights: np.ndarray, output_type: int, **attributes: Any
) -> ModelProto:
    from onnx import helper, numpy_helper

    input_type = helper.np_dtype_to_tensor_dtype(image.dtype)
    graph = helper.make_graph(
        [helper.make_node(operator, ["x", "w"], ["y"], **attributes)],
        "peak",
        [helper.make_tensor_value_info("x", input_type, image.shape)],
        [helper.make_tensor_value_info("y", output_type, [None] * image.ndim)],
        [numpy_helper.from_array(weights, "w")],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)
