"""ONNX models as graphs of onnx_ir: each value knows the node that makes it and those that read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optcli.models.onnx_graphs.protobuf import graphs

if TYPE_CHECKING:
    import numpy as np
    from onnx import ModelProto
    from onnx_ir import Graph, Model, Node, TensorProtocol, Value


def read(model: ModelProto) -> Model:
    """The graph of a model that onnx's checker takes; the message stays as it is.

    Raises NotImplementedError where an input or output is a map, as classifiers of scikit-learn give.
    """
    from onnx_ir import serde

    return serde.deserialize_model(model)


def written(model: Model) -> ModelProto:
    """The graph as a message."""
    from onnx_ir import serde

    message: ModelProto = serde.serialize_model(model)
    drop_notes_of_weights(message)  # onnx_ir makes one for every initializer
    return message


def drop_notes_of_weights(model: ModelProto) -> None:
    """Remove initializers from `value_info`, which is not kept up to date when they are changed."""
    for graph in graphs(model.graph):
        weights = {tensor.name for tensor in graph.initializer}
        notes = [value for value in graph.value_info if value.name not in weights]
        del graph.value_info[:]
        graph.value_info.extend(notes)


def maker(value: Value | None, *operators: str) -> Node | None:
    """The node that makes a value; with `operators`, only where it is of one of these types."""
    node = value.producer() if value is not None else None
    return node if node is not None and (not operators or node.op_type in operators) else None


def argument(node: Node, position: int) -> Value | None:
    """An input of a node; None where it is left out."""
    return node.inputs[position] if position < len(node.inputs) else None


def constant(value: Value | None) -> TensorProtocol | None:
    """The tensor of an initializer, or of a Constant node; None for a computed value, and for None."""
    node = maker(value, "Constant")
    if node is not None:
        return node.attributes.get_tensor("value")
    return value.const_value if value is not None else None


def array(value: Value | None) -> np.ndarray | None:
    """The numbers of a constant; None for a computed value, and for None."""
    tensor = constant(value)
    return None if tensor is None else tensor.numpy()


def set_array(value: Value, numbers: np.ndarray) -> None:
    """Give a constant other numbers."""
    import onnx_ir

    tensor, node = onnx_ir.tensor(numbers, name=value.name), value.producer()
    if node is None:
        value.const_value = tensor
    else:
        node.attributes["value"] = onnx_ir.AttrTensor("value", tensor)


def add_initializer(graph: Graph, name: str, numbers: np.ndarray) -> Value:
    """An initializer of that name: the one there is, else a new one."""
    import onnx_ir

    if name not in graph.initializers:
        tensor = onnx_ir.tensor(numbers, name=name)
        graph.register_initializer(onnx_ir.Value(name=name, const_value=tensor))
    return graph.initializers[name]


def remove_unread(node: Node) -> None:
    """Take a node out if no node reads what it makes, and no graph gives it out."""
    if node.graph is not None and not any(map(_is_read, node.outputs)):
        node.graph.remove(node, safe=True)


def remove_unread_initializers(model: Model) -> None:
    """Take out initializers that no node reads and no graph gives out."""
    for graph in (model.graph, *model.graph.subgraphs()):
        for name, value in list(graph.initializers.items()):
            if not _is_read(value):
                del graph.initializers[name]


def _is_read(value: Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()
