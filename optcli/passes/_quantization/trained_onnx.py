"""A network with fake quantizers as an ONNX model that runtimes compute on integers.

The exporter writes what the network does: weights are rounded at every call, and batch norms stand
behind convolutions. ONNX Runtime takes an integer kernel only where weights are integers already and a
convolution's result goes into QuantizeLinear at once. What is done about it here is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from optcli.models.onnx_graphs.graph import (
    add_initializer,
    array,
    maker,
    read,
    remove_unread,
    remove_unread_initializers,
    written,
)
from optcli.models.onnx_graphs.operators import PRODUCTS
from optcli.passes import Job
from optcli.passes._quantization.integer_chains import close_integer_chains, keep_floats
from optcli.passes._torch.fake_quantizers import as_onnx, round_weights
from optcli.passes._torch.onnx_exporting import (
    onnx_of_program,
    program_of,
    quiet_exporters,
    require_names,
)
from optcli.passes._torch.tracing import example, flat, plain_attention

if TYPE_CHECKING:
    import numpy as np
    import torch
    from onnx import ModelProto
    from onnx_ir import Model, Node


def onnx_of_trained(model: torch.nn.Module, job: Job, outputs: Sequence[str]) -> ModelProto:
    """The ONNX model of a network with fake quantizers, in evaluation mode; its weights get rounded.

    Raises `StepError`, and whatever the exporter raises.
    """
    function = flat(model, job.inputs)
    with plain_attention():
        round_weights(model, lambda: function(*example(job.inputs, small=True)))
    with quiet_exporters(), as_onnx(model):
        exported = onnx_of_program(program_of(function, job), job.inputs, outputs)
    require_names(exported, [spec.name for spec in job.inputs], outputs)
    graph = read(exported)
    keep_integer_weights(graph)
    fold_batch_norms(graph)
    close_integer_chains(graph)
    keep_floats(graph)
    remove_unread_initializers(graph)
    return written(graph)


# Products whose results have their channels where batch norms look for them.
_NORMED = PRODUCTS - {"MatMul"}


def keep_integer_weights(model: Model) -> int:
    """Replace weights that are rounded at each call by their integers; returns how many were."""
    import numpy as np
    import onnx_ir

    changed = 0
    for node in list(model.graph):
        if node.op_type != "QuantizeLinear":
            continue
        weight, scale, zero_point = (array(value) for value in node.inputs)
        if weight is None or scale is None or zero_point is None:
            continue
        axis = node.attributes.get_int("axis", 1)
        limits = np.iinfo(zero_point.dtype)
        low = -limits.max if limits.min < 0 else 0  # either sign of a signed one fits
        steps = np.rint(weight / _along(scale, weight.ndim, axis))
        integers = steps + _along(zero_point, weight.ndim, axis).astype(np.float32)
        name = f"{node.outputs[0].name}_kept"
        weights_name = add_initializer(
            model.graph, name, integers.clip(low, limits.max).astype(zero_point.dtype)
        )
        onnx_ir.convenience.replace_all_uses_with(node.outputs[0], weights_name)
        remove_unread(node)
        changed += 1
    for node in list(model.graph):
        back = maker(node.inputs[0], "DequantizeLinear") if node.op_type == "Transpose" else None
        if back is not None and array(back.inputs[0]) is not None:
            _turn(model, node, back)
    return changed


def _turn(model: Model, node: Node, back: Node) -> None:
    """Have the weights lie as Transpose, behind their DequantizeLinear, would put them."""
    import onnx_ir

    weight, (scale, zero_point) = array(back.inputs[0]), back.inputs[1:]
    assert weight is not None
    order = list(node.attributes.get_ints("perm", tuple(reversed(range(weight.ndim)))))
    turned = add_initializer(model.graph, f"{node.outputs[0].name}_integers", weight.transpose(order))
    axis = order.index(back.attributes.get_int("axis", 1) % weight.ndim)
    floats = onnx_ir.Value(
        name=f"{node.outputs[0].name}_floats", type=node.outputs[0].type, shape=node.outputs[0].shape
    )
    model.graph.insert_before(
        node,
        onnx_ir.node(
            "DequantizeLinear",
            [turned, scale, zero_point],
            {"axis": axis},
            outputs=[floats],
            name=floats.name,
        ),
    )
    onnx_ir.convenience.replace_all_uses_with(node.outputs[0], floats)
    remove_unread(node)
    remove_unread(back)


def fold_batch_norms(model: Model) -> int:
    """Multiply the scales of integer weights by the batch norm behind them; returns how many were.

    A channel that the batch norm multiplies by a negative number gets weights of the other sign: they
    reach from -127 to 127.
    """
    folded = 0
    for node in list(model.graph):
        product = maker(node.inputs[0], *_NORMED) if node.op_type == "BatchNormalization" else None
        if product is None or node.outputs[0].is_graph_output():
            continue
        if len(product.outputs[0].uses()) == 1 and not product.outputs[0].is_graph_output():
            folded += _fold(model, product, node)
    return folded


def _fold(model: Model, product: Node, norm: Node) -> bool:
    """Whether a batch norm could be folded into the product whose result it alone reads."""
    import numpy as np
    import onnx_ir

    back = maker(product.inputs[1], "DequantizeLinear")
    weight, scale, zero_point = map(array, back.inputs) if back is not None else (None, None, None)
    bias = array(product.inputs[2]) if len(product.inputs) > 2 else np.zeros(1)
    numbers = [array(value) for value in norm.inputs[1:5]]
    if back is None or weight is None or scale is None or zero_point is None or bias is None:
        return False
    known = [each.astype(np.float64) for each in numbers if each is not None]
    if len(known) < len(numbers):
        return False
    gamma, beta, mean, variance = known
    factor = gamma / np.sqrt(variance + norm.attributes.get_float("epsilon", 1e-5))
    if scale.shape != factor.shape or zero_point.any():
        return False
    axis = back.attributes.get_int("axis", 1)
    sign = np.sign(factor).astype(weight.dtype)
    # A channel that is multiplied by nothing needs a scale nevertheless.
    scales = np.where(sign == 0, scale, scale * np.abs(factor)).astype(np.float32)
    name = product.outputs[0].name
    inputs = [
        add_initializer(model.graph, f"{name}_weight", weight * _along(sign, weight.ndim, axis)),
        add_initializer(model.graph, f"{name}_scale", scales),
        back.inputs[2],
    ]
    floats = onnx_ir.Value(name=f"{name}_floats")
    dequantize = onnx_ir.node(
        "DequantizeLinear", inputs, {"axis": axis}, outputs=[floats], name=floats.name
    )
    model.graph.insert_before(product, dequantize)
    shift = ((bias - mean) * factor + beta).astype(np.float32)
    product.resize_inputs(3)
    product.replace_input_with(1, floats)
    product.replace_input_with(2, add_initializer(model.graph, f"{name}_bias", shift))
    onnx_ir.convenience.replace_all_uses_with(norm.outputs[0], product.outputs[0])
    for unread in (norm, back):
        remove_unread(unread)
    return True


def _along(numbers: np.ndarray, dimensions: int, axis: int) -> np.ndarray:
    """One number per channel, in a shape that goes with the weights; one alone stays as it is."""
    if numbers.size == 1:
        return numbers.reshape(())
    shape = [1] * dimensions
    shape[axis] = -1
    return numbers.reshape(shape)
