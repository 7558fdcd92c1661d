"""ONNX files of any age: opset 7 to 18, with the operators of their time, as no PyTorch writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

# The version of the file format that went with an opset when it was new. Files of 14 and 16 differ from
# those of 15 and 17 in the number alone, which optcli compares with 11, 13 and 18 upwards.
_IR_VERSIONS = {7: 3, 8: 3, 9: 4, 10: 5, 11: 6, 12: 7, 13: 7, 15: 8, 17: 8, 18: 8}
OPSETS = tuple(_IR_VERSIONS)
NETWORKS = ("classifier", "segmenter", "depthwise")


@dataclass
class _Graph:
    """Nodes and weights of a network being written, each output named after its operator."""

    opset: int
    generator: np.random.Generator
    nodes: list[Any] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, kind: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        # Old converters gave their nodes no names.
        output = output or f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], **attributes))
        return output

    def weight(self, values: np.ndarray) -> str:
        name = f"weight_{len(self.weights)}"
        self.weights[name] = values
        return name

    def random(self, *shape: int, scale: float = 1.0) -> str:
        return self.weight((scale * self.generator.standard_normal(shape)).astype(np.float32))

    def conv(self, value: str, inputs: int, outputs: int, size: int = 3, **attributes: Any) -> str:
        fan_in = inputs // attributes.get("group", 1) * size * size
        weight = self.random(outputs, inputs // attributes.get("group", 1), size, size,
                             scale=(2 / fan_in) ** 0.5)  # fmt: skip
        bias = self.random(outputs, scale=0.1)
        return self.add("Conv", [value, weight, bias], kernel_shape=[size, size],
                        pads=[size // 2] * 4, **attributes)  # fmt: skip

    def batch_norm(self, value: str, channels: int) -> str:
        scale, mean = self.random(channels, scale=0.1), self.random(channels, scale=0.1)
        bias = self.random(channels, scale=0.1)
        variance = self.weight(np.ones(channels, np.float32))
        self.weights[scale] += 1
        return self.add("BatchNormalization", [value, scale, bias, mean, variance], epsilon=1e-5)

    def clip(self, value: str, low: float, high: float) -> str:
        if self.opset < 11:
            return self.add("Clip", [value], min=low, max=high)
        bounds = [self.weight(np.array(bound, np.float32)) for bound in (low, high)]
        return self.add("Clip", [value, *bounds])

    def dropout(self, value: str) -> str:
        if self.opset < 12:
            return self.add("Dropout", [value], ratio=0.5)
        return self.add("Dropout", [value, self.weight(np.array(0.5, np.float32))])

    def upsample(self, value: str) -> str:
        scales = np.array([1, 1, 2, 2], np.float32)
        if self.opset < 9:
            return self.add("Upsample", [value], mode="nearest", scales=scales.tolist())
        if self.opset < 11:
            kind = "Upsample" if self.opset == 9 else "Resize"
            return self.add(kind, [value, self.weight(scales)], mode="nearest")
        # Until opset 13 nobody could leave the region of interest out.
        roi = self.weight(np.zeros(0, np.float32)) if self.opset < 13 else ""
        return self.add("Resize", [value, roi, self.weight(scales)], mode="nearest",
                        coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip

    def pad(self, value: str) -> str:
        pads = [0, 0, 1, 1, 0, 0, 1, 1]
        if self.opset < 11:
            return self.add("Pad", [value], mode="constant", pads=pads, value=0.0)
        return self.add("Pad", [value, self.weight(np.array(pads, np.int64))], mode="constant")

    def mean(self, value: str, axes: Sequence[int]) -> str:
        if self.opset < 18:
            return self.add("ReduceMean", [value], axes=list(axes), keepdims=1)
        return self.add("ReduceMean", [value, self.weight(np.array(axes, np.int64))], keepdims=1)

    def squeeze(self, value: str, axes: Sequence[int]) -> str:
        if self.opset < 13:
            return self.add("Squeeze", [value], axes=list(axes))
        return self.add("Squeeze", [value, self.weight(np.array(axes, np.int64))])


def network(
    name: str, opset: int, batch: int | str = "N", weights_as_inputs: bool | None = None, seed: int = 0
) -> Any:
    """`image` [batch, 3, 16, 16] to one output; weights are listed as inputs where they had to be."""
    graph = _Graph(opset, np.random.default_rng(seed))
    shape = {"classifier": _classifier, "segmenter": _segmenter, "depthwise": _depthwise}[name](graph)
    # Weights that are not inputs came with version 4 of the file format.
    ir_version = _IR_VERSIONS[opset] if weights_as_inputs is not False else max(_IR_VERSIONS[opset], 4)
    inputs = [helper.make_tensor_value_info("image", TensorProto.FLOAT, [batch, 3, 16, 16])]
    if ir_version < 4 if weights_as_inputs is None else weights_as_inputs:
        inputs += [
            helper.make_tensor_value_info(
                key, helper.np_dtype_to_tensor_dtype(values.dtype), list(values.shape)
            )
            for key, values in graph.weights.items()
        ]
    made = helper.make_graph(
        graph.nodes,
        name,
        inputs,
        [helper.make_tensor_value_info("result", TensorProto.FLOAT, [batch, *shape])],
        [numpy_helper.from_array(values, key) for key, values in graph.weights.items()],
    )
    model = helper.make_model(
        made, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version
    )
    onnx.checker.check_model(model)
    return model


def _classifier(graph: _Graph) -> list[int]:
    """Batch normalization, PRelu, Dropout, a shortcut, Gemm."""
    x = graph.batch_norm(graph.conv("image", 3, 16, strides=[2, 2]), 16)
    slope = graph.weight(np.full((16, 1, 1), 0.1, np.float32))
    x = graph.add("PRelu", [x, slope])
    left = graph.add("Relu", [graph.batch_norm(graph.conv(x, 16, 16), 16)])
    x = graph.add("Add", [x, graph.conv(left, 16, 16)])
    x = graph.add("LeakyRelu", [graph.add("Concat", [x, left], axis=1)], alpha=0.1)
    x = graph.add("MaxPool", [x], kernel_shape=[2, 2], strides=[2, 2])
    x = graph.dropout(graph.add("GlobalAveragePool", [x]))
    x = graph.add("Flatten", [x], axis=1)
    weight, bias = graph.random(10, 32, scale=0.3), graph.random(10, scale=0.1)
    graph.add("Gemm", [x, weight, bias], output="result", transB=1)
    return [10]


def _segmenter(graph: _Graph) -> list[int]:
    """Down, up again by a transposed convolution and by Upsample (later Resize), a score per pixel."""
    x = graph.add("Relu", [graph.batch_norm(graph.conv("image", 3, 16, strides=[2, 2]), 16)])
    low = graph.add("Relu", [graph.conv(x, 16, 24, strides=[2, 2])])
    weight, bias = graph.random(24, 16, 2, 2, scale=0.2), graph.random(16, scale=0.1)
    up = graph.add("ConvTranspose", [low, weight, bias], kernel_shape=[2, 2], strides=[2, 2])
    joined = graph.add("Concat", [graph.add("Relu", [up]), x], axis=1)
    x = graph.upsample(graph.add("Relu", [graph.conv(joined, 32, 16)]))
    graph.add("Sigmoid", [graph.conv(x, 16, 4)], output="result")
    return [4, 16, 16]


def _depthwise(graph: _Graph) -> list[int]:
    """Depthwise convolutions between 1x1 ones, Clip, Pad, a gate by the mean of each channel."""
    x = graph.clip(graph.batch_norm(graph.conv("image", 3, 16), 16), 0.0, 6.0)
    weight, bias = graph.random(16, 1, 3, 3, scale=0.4), graph.random(16, scale=0.1)
    x = graph.add("Conv", [graph.pad(x), weight, bias], kernel_shape=[3, 3], group=16)
    x = graph.clip(graph.batch_norm(x, 16), 0.0, 6.0)
    gate = graph.add("HardSigmoid", [graph.conv(graph.mean(x, [2, 3]), 16, 16, size=1)])
    x = graph.conv(graph.add("Mul", [x, gate]), 16, 24, size=1)
    x = graph.add("Relu", [graph.conv(x, 24, 24, group=24, strides=[2, 2])])
    x = graph.squeeze(graph.mean(x, [2, 3]), [2, 3])
    weight = graph.random(24, 10, scale=0.3)
    graph.add("MatMul", [x, weight], output="result")
    return [10]
