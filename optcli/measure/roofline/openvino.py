"""OpenVINO's rates: matrix products and convolutions in fp32, bf16, fp16 and int8."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from optcli.environment import computes_in
from optcli.measure.roofline.findings import Rate
from optcli.measure.roofline.timing import (
    CONVOLUTIONS,
    MATRICES,
    ConvolutionShape,
    RateRequest,
    best_s,
    product_operations,
    product_size,
)
from optcli.workers import Channel

if TYPE_CHECKING:
    from openvino import Model, Node

# One layer alone would be measured together with what turns its input and output around.
_LAYERS = 4
_HINTS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16", "int8": "f32"}


def rates(request: RateRequest, channel: Channel) -> list[Rate]:
    """Matrix products and convolutions, each for as long as the request says."""
    fastest: list[Rate] = []
    for precision in _HINTS:
        if precision in ("bf16", "fp16") and not computes_in(precision):
            continue
        for side in MATRICES:
            done = _best_s(_product(side, precision), precision, request)
            size, per_s = product_size(side), _LAYERS * product_operations(side) / done
            fastest.append(request.rate("openvino", precision, "matmul", size, per_s))
        for layer in CONVOLUTIONS:
            done = _best_s(_convolutions(layer, precision), precision, request)
            per_s = _LAYERS * layer.operations / done
            fastest.append(request.rate("openvino", precision, "convolution", layer.size, per_s))
    return fastest


def _best_s(model: Model, precision: str, request: RateRequest) -> float:
    import openvino

    settings = {
        "INFERENCE_NUM_THREADS": request.threads,
        "INFERENCE_PRECISION_HINT": _HINTS[precision],
        "NUM_STREAMS": 1,
    }
    inference = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
    inference.set_input_tensor(openvino.Tensor(_random(tuple(model.inputs[0].shape))))
    return best_s(inference.infer, request.seconds)


def _product(side: int, precision: str) -> Model:
    from openvino import Model
    from openvino import opset13 as opset

    parameter = opset.parameter([side, side], np.float32)
    last = parameter
    for _ in range(_LAYERS):
        weights = _weights((side, side), precision)
        last = opset.matmul(_limited(last, precision), weights, False, True)
    return Model([last], [parameter], "peak")


def _convolutions(layer: ConvolutionShape, precision: str) -> Model:
    from openvino import Model
    from openvino import opset13 as opset

    parameter = opset.parameter([layer.batch, layer.channels, layer.side, layer.side], np.float32)
    last = parameter
    for _ in range(_LAYERS):
        weights = _weights((layer.channels, layer.channels, 3, 3), precision)
        last = opset.convolution(_limited(last, precision), weights, [1, 1], [1, 1], [1, 1], [1, 1])
    return Model([last], [parameter], "peak")


def _limited(value: Node, precision: str) -> Node:
    """For int8, to 256 levels, which makes the operator that follows compute in integers."""
    from openvino import opset13 as opset

    if precision != "int8":
        return value
    low, high = np.float32(0), np.float32(2.55)
    return opset.fake_quantize(value, low, high, low, high, 256)


def _weights(shape: tuple[int, ...], precision: str) -> Node:
    from openvino import opset13 as opset

    if precision != "int8":
        return opset.constant(_random(shape) / shape[1])
    stored = opset.constant(np.random.default_rng(0).integers(-127, 128, shape).astype(np.int8))
    return opset.multiply(opset.convert(stored, "f32"), opset.constant(np.float32(0.01)))


def _random(shape: tuple[int, ...]) -> Any:
    return np.random.default_rng(0).random(shape, dtype=np.float32)
