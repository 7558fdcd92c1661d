"""Small quantized ONNX models, right for TensorRT but for what a test changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from onnx import ModelProto

WEIGHT_SCALE = 0.003


@dataclass(frozen=True)
class Layer:
    """One product whose input and weights are quantized, as in `layer(...)`.

    `scales` are those of the input, `axis` that of the weights' (None: one for all); `integers`,
    `zero` and `weight_integers` the types. Input is `x`, output `y`, of batch `b`.
    """

    operator: str = "Conv"
    integers: Any = np.int8
    zero: float = 0
    scales: Any = 0.02
    weight_integers: Any = np.int8
    weight_zero: float = 0
    axis: int | None = 0
    floats: Any = np.float32
    group: int = 1
    bias: str = "float"
    quantized_input: bool = True
    quantized_weight: bool = True
    stored: bool = True
    opset: int = 21

    def model(self) -> ModelProto:
        """The model; `stored` weights are integers in it, others floats before QuantizeLinear."""
        import onnx
        from onnx import helper, numpy_helper

        tensors, nodes = [], []

        def tensor(name: str, value: Any) -> str:
            tensors.append(numpy_helper.from_array(np.asarray(value), name))
            return name

        def add(kind: str, inputs: list[str], output: str, **options: Any) -> str:
            nodes.append(helper.make_node(kind, inputs, [output], f"{kind}_{output}", **options))
            return output

        data = "x"
        if self.quantized_input:
            scale = np.asarray(self.scales, self.floats)
            zero = np.full(scale.shape, self.zero).astype(self.integers)
            grid = [tensor("x_scale", scale), tensor("x_zero", zero)]
            along = {"axis": 1} if scale.ndim else {}
            data = add("QuantizeLinear", [data, *grid], "xq", **along)
            data = add("DequantizeLinear", [data, *grid], "xd", **along)
        shape = {"Conv": (8, 4 // self.group, 3, 3), "ConvTranspose": (4, 8 // self.group, 3, 3)}.get(
            self.operator, (4, 8)
        )
        generator = np.random.default_rng(0)
        floats = (0.1 * generator.standard_normal(shape)).astype(np.float32)
        weight = self._weight(floats, tensor, add) if self.quantized_weight else None
        inputs = [data, weight or tensor("w", floats.astype(self.floats))]
        if self.bias == "int32":
            grid = [
                tensor("b_scale", np.full(8, 6e-5, self.floats)),
                tensor("b_zero", np.zeros(8, np.int32)),
            ]
            inputs.append(
                add(
                    "DequantizeLinear", [tensor("b", np.arange(8, dtype=np.int32)), *grid], "bd", axis=0
                )
            )
        elif self.bias == "float" and self.operator != "MatMul":
            inputs.append(tensor("b", np.linspace(-1, 1, 8).astype(self.floats)))
        options = {"pads": [1, 1, 1, 1], "group": self.group} if "Conv" in self.operator else {}
        add(self.operator, inputs, "y", **options)
        element = helper.np_dtype_to_tensor_dtype(np.dtype(self.floats))
        sizes = ["b", 4, 6, 6] if "Conv" in self.operator else ["b", 4]
        made = ["b", 8, 6, 6] if "Conv" in self.operator else ["b", 8]
        graph = helper.make_graph(
            nodes, "layer", [helper.make_tensor_value_info("x", element, sizes)],
            [helper.make_tensor_value_info("y", element, made)], tensors,
        )  # fmt: skip
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10
        )
        onnx.checker.check_model(model)
        return model

    def _weight(self, floats: np.ndarray, tensor: Any, add: Any) -> str:
        along = {} if self.axis is None else {"axis": self.axis}
        count = () if self.axis is None else (floats.shape[self.axis],)
        zero = np.full(count, self.weight_zero).astype(self.weight_integers)
        grid = [tensor("w_scale", np.full(count, WEIGHT_SCALE, self.floats)), tensor("w_zero", zero)]
        if self.stored:
            low = 0 if self.weight_integers == np.uint8 else -127
            values = (floats / WEIGHT_SCALE + self.weight_zero).round().clip(low, low + 254)
            quantized = tensor("wq", values.astype(self.weight_integers))
        else:
            quantized = add(
                "QuantizeLinear", [tensor("w", floats.astype(self.floats)), *grid], "wq", **along
            )
        return str(add("DequantizeLinear", [quantized, *grid], "wd", **along))


def applied(change: Callable[[Any], Any], model: ModelProto) -> Any:
    """Change a model in place by a function on its graph, and return what that returns."""
    from optcli.models.onnx_graphs.graph import read, written

    graph = read(model)
    result = change(graph)
    model.CopyFrom(written(graph))
    return result


def layer(**changes: Any) -> ModelProto:
    """A model of one layer that TensorRT takes, but for what is changed."""
    return replace(Layer(), **changes).model()
