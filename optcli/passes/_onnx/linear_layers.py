"""Linear layers of ONNX models: a product with weights and the bias behind it, in one operator."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from optcli.models.onnx_graphs.graph import add_initializer, array, constant, maker, read, written

if TYPE_CHECKING:
    from onnx import ModelProto
    from onnx_ir import Graph, Node, Value


def merged(model: ModelProto, untouched: Collection[str] = ()) -> ModelProto:
    """The model with each `Add(MatMul(x, weights), bias)` as `Gemm`, between two `Reshape` if need be.

    It computes the same. A quantizer that keeps additions in floating point leaves the bias behind the
    integers; in `Gemm` it is one of their sums. Exporters write `Gemm` themselves where the batch is
    fixed. The `Gemm` has the name of the product, and what the layer gives keeps its name. `untouched`
    are names of nodes that stay; so does a layer of whose input more than one size is unknown.
    """
    model_ir = read(model)
    graph = model_ir.graph
    additions = [node for node in graph if node.op_type == "Add" and node.name not in untouched]
    changed = [node for node in additions if _merge(graph, node)]
    return written(model_ir) if changed else model


def _merge(graph: Graph, add: Node) -> bool:
    """Put one `Gemm` in the place of an addition and the product before it, where they are a layer."""
    layer = _layer(add)
    sizes = None if layer is None else _sizes(layer[0].inputs[0])
    given = add.outputs[0]
    if layer is None or sizes is None or given.is_graph_output():
        return False
    import numpy as np
    import onnx_ir

    product, weights, bias = layer
    name, rows, width = str(product.name), product.inputs[0], sizes[-1]
    numbers = constant(bias)
    assert numbers is not None
    out = numbers.shape.numpy()[0]
    flat = len(sizes) == 2
    nodes: list[Node] = []

    def made(operator: str, inputs: list[Value | None], ending: str) -> Value:
        node = onnx_ir.node(operator, inputs, name=name + ending)
        nodes.append(node)
        node.outputs[0].name = f"{given.name}/linear{ending}"
        node.outputs[0].dtype = numbers.dtype
        return node.outputs[0]

    def shaped(value: Value | None, shape: list[int], ending: str) -> Value:
        target = add_initializer(graph, f"{given.name}/linear{ending}_shape", np.array(shape, np.int64))
        return made("Reshape", [value, target], ending)

    result = made("Gemm", [rows if flat else shaped(rows, [-1, width], "_rows"), weights, bias], "")
    if not flat:
        for value, columns in ((nodes[0].outputs[0], width), (result, out)):
            value.shape = onnx_ir.Shape([None, columns])
        result = shaped(result, [*sizes[:-1], out], "_whole")
    result.shape = given.shape
    graph.insert_before(add, nodes)
    given.replace_all_uses_with(result)
    graph.remove([add, product], safe=True)
    result.name = given.name
    return True


def _layer(add: Node) -> tuple[Node, Value, Value] | None:
    """The product, its weights (two-dimensional) and the bias (one number for each column)."""
    for one, other in (add.inputs, add.inputs[::-1]):
        product, bias = maker(one, "MatMul"), array(other)
        if product is None or bias is None or bias.ndim != 1 or one is None or other is None:
            continue
        weights = product.inputs[1]
        numbers = array(weights)
        if weights is None or numbers is None or numbers.ndim != 2:
            continue
        read_once = len(one.uses()) == 1 and not one.is_graph_output()
        if read_once and bias.shape == numbers.shape[1:] and numbers.dtype == bias.dtype:
            return product, weights, other
    return None


def _sizes(value: Value | None) -> list[int] | None:
    """The sizes of a value, -1 for the one that varies; None where they are not known well enough."""
    if value is None or value.shape is None or len(value.shape) < 2:
        return None
    sizes = [size if isinstance(size, int) else -1 for size in value.shape]
    known = sizes[-1] > 0 and sizes.count(-1) <= 1 and 0 not in sizes
    return sizes if known else None
