"""What old ONNX files, and those of other tools, lack for the libraries that change them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optcli.models.formats import onnx as onnx_format
from optcli.models.onnx_graphs.interface import input_names
from optcli.models.onnx_graphs.shapes import without_weights

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto


def tidied(model: ModelProto) -> ModelProto:
    """The model with its weights as initializers, its functions written out, types and names noted.

    It computes the same. The model is changed in place where that can be.
    """
    from onnx import inliner

    _drop_weight_inputs(model)
    if model.functions:
        model = inliner.inline_local_functions(model)
    _lift_constants(model)
    _note_types(model)
    name_nodes(model)
    return model


def name_nodes(model: ModelProto) -> None:
    """Nodes are kept or taken by name: those without one get their operator and position."""
    seen: set[str] = set()
    for index, node in enumerate(model.graph.node):
        if not node.name or node.name in seen:
            base = node.name or node.op_type
            node.name = f"{base}_{index}"
        seen.add(node.name)


def _drop_weight_inputs(model: ModelProto) -> None:
    """Weights that are inputs too could be overridden: runtimes neither fold nor fuse them."""
    # Weights that are not inputs came with version 4 of the file format.
    model.ir_version = max(model.ir_version, 4)
    names = input_names(model)
    inputs = [value for value in model.graph.input if value.name in names]
    if len(inputs) < len(model.graph.input):
        del model.graph.input[:]
        model.graph.input.extend(inputs)


def _lift_constants(model: ModelProto) -> None:
    """Some converters write weights as Constant nodes, where quantizers do not look for them."""
    graph = model.graph
    outputs = {value.name for value in graph.output}
    nodes = []
    for node in graph.node:
        tensor = node.attribute[0].t if _is_tensor_constant(node) else None
        if tensor is None or node.output[0] in outputs:
            nodes.append(node)
            continue
        lifted = graph.initializer.add()
        lifted.CopyFrom(tensor)
        lifted.name = node.output[0]
    if len(nodes) < len(graph.node):
        del graph.node[:]
        graph.node.extend(nodes)


def _is_tensor_constant(node: NodeProto) -> bool:
    return node.op_type == "Constant" and [each.name for each in node.attribute] == ["value"]


def _note_types(model: ModelProto) -> None:
    """Note types and shapes that onnx does not infer: behind operators of other domains, or new ones.

    ONNX Runtime is asked for these, as if they were outputs. What it cannot load is left as it is.
    """
    import onnx

    if onnx_format.is_large(model):
        return
    untyped = [value for value in model.graph.value_info if not value.type.tensor_type.elem_type]
    for value in untyped:
        model.graph.value_info.remove(value)
    graph = onnx.shape_inference.infer_shapes(without_weights(model)).graph
    typed = {value.name for value in (*graph.value_info, *graph.output)}
    missing = {name for node in graph.node for name in node.output if name} - typed
    if not missing:
        return
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(missing))
    try:
        session = onnx_format.session(probe.SerializeToString(), optimized=False)
    except Exception:  # a model that it cannot run: the pass will say so, or needs no types
        return
    for value in session.get_outputs():
        if value.name in missing and value.type in _KINDS:
            # It gives no shape where it knows none.
            note = onnx.helper.make_tensor_value_info(
                value.name, _KINDS[value.type], value.shape or None
            )
            model.graph.value_info.append(note)


# ONNX Runtime's names of types, as onnx numbers them.
_KINDS = {
    "tensor(float)": 1,
    "tensor(uint8)": 2,
    "tensor(int8)": 3,
    "tensor(int32)": 6,
    "tensor(int64)": 7,
    "tensor(bool)": 9,
    "tensor(float16)": 10,
    "tensor(double)": 11,
}
