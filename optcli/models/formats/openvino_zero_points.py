"""Zero points of asymmetric activations in OpenVINO models, moved into biases, and back.

An activation between `low` < 0 and `high` has a zero point, which convolutions and matrix products
subtract on every call. Quantized from 0 to `high - low` it has none. The product of the weights with
what is missing, `low` times their sum, is the same for every input, so the bias holds it. The network
computes the same. Only values between FakeQuantize and the bias differ: who looks at them moves the
zero points back first.

A convolution that pads is left alone: it pads with zeros, which would then stand for `low`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optcli.models.formats.openvino import values_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from openvino import Input, Model, Node, Output

# Of the biases that are put in where there was none.
_NAME = "/zero_point"


def move_into_biases(model: Model) -> int:
    """Move what can be moved, in place; gives how many activations have no zero point any more."""
    return _moved(model, back=False)


def move_back(model: Model) -> int:
    """Undo `move_into_biases`, in place; gives how many activations have a zero point again."""
    return _moved(model, back=True)


def _moved(model: Model, *, back: bool) -> int:
    moved = 0
    for node in model.get_ordered_ops():
        low = _low(node, moved=back)
        if low is None:
            continue
        readers = [*node.output(0).get_target_inputs()]
        sums = [each for each in map(_sums, readers) if each is not None]
        if not readers or len(sums) < len(readers):
            continue
        _let_through(node, low if back else 0.0)
        for reader, weights in zip(readers, sums, strict=True):
            _add(reader.get_node(), (-low if back else low) * weights, back=back)
        moved += 1
    if moved:
        model.validate_nodes_and_infer_types()
    return moved


def _low(node: Node, *, moved: bool) -> float | None:
    """Where an asymmetric range begins; None for anything else. `moved`: of those that were moved."""
    if node.get_type_name() != "FakeQuantize":
        return None
    ends = [values_of(node.input_value(port)) for port in range(1, 5)]
    if any(each is None or each.size != 1 for each in ends):
        return None
    low, high, out_low, out_high = (float(each.item()) for each in ends)  # type: ignore[union-attr]
    # Of integers from -128 to 127, zero stands for itself.
    symmetric = abs(low + high * 128 / 127) <= 1e-3 * high
    if not low < 0 < high or symmetric:
        return None
    wanted = (0.0, high - low) if moved else (low, high)
    step = (high - low) / 255
    return low if max(abs(out_low - wanted[0]), abs(out_high - wanted[1])) < 1e-3 * step else None


def _sums(reader: Input) -> np.ndarray | None:
    """The sum of the weights of each output channel, in a form to be added to the output.

    None where what reads is no product with weights, or pads.
    """
    node = reader.get_node()
    if reader.get_index() != 0 or node.get_type_name() not in _SUMS:
        return None
    weights = values_of(node.input_value(1))
    return None if weights is None else _SUMS[node.get_type_name()](node, weights)


def _of_convolution(node: Node, weights: np.ndarray) -> np.ndarray | None:
    """Weights are [out, in, ...], of groups [groups, out, in, ...]."""
    attributes = node.get_attributes()
    pads = any(attributes["pads_begin"]) or any(attributes["pads_end"])
    if pads or attributes["auto_pad"] not in ("explicit", "valid"):
        return None
    first = 2 if node.get_type_name() == "GroupConvolution" else 1
    sums: np.ndarray = weights.sum(tuple(range(first, weights.ndim)), dtype="float64")
    return sums.reshape(1, -1, *[1] * (weights.ndim - first - 1))


def _of_product(node: Node, weights: np.ndarray) -> np.ndarray | None:
    attributes, rank = node.get_attributes(), node.input_value(0).get_partial_shape().rank
    if attributes["transpose_a"] or weights.ndim != 2 or rank.is_dynamic or rank.get_length() < 2:
        return None
    sums: np.ndarray = weights.sum(1 if attributes["transpose_b"] else 0, dtype="float64")
    return sums


_SUMS = {
    "Convolution": _of_convolution,
    "GroupConvolution": _of_convolution,
    "MatMul": _of_product,
}


def _let_through(node: Node, low: float) -> None:
    """Let the outputs of FakeQuantize begin at another value."""
    first, last = (float(values_of(node.input_value(port)).item()) for port in (1, 2))  # type: ignore[union-attr]
    shape = node.input_value(3).get_shape()
    kind = node.input_value(3).get_element_type().to_dtype()
    for port, value in ((3, low), (4, low + (last - first))):
        node.input(port).replace_source_output(_constant(value, kind, shape))


def _add(node: Node, addend: np.ndarray, *, back: bool) -> None:
    """Add to what a node gives: in the bias behind it, or in one that is put in, or taken out again."""
    from openvino import opset13

    readers: Sequence[Input] = [*node.output(0).get_target_inputs()]
    kind = node.output(0).get_element_type().to_dtype()
    behind = readers[0].get_node() if len(readers) == 1 else None
    if back and behind is not None and behind.get_friendly_name() == node.get_friendly_name() + _NAME:
        _hand_over(behind.output(0), node.output(0), [*behind.output(0).get_target_inputs()])
        return
    if behind is not None and behind.get_type_name() == "Add":
        port = 1 - readers[0].get_index()
        bias = behind.input_value(port).get_node()
        if bias.get_type_name() == "Constant":
            added = bias.get_data() + addend
            behind.input(port).replace_source_output(_constant(added, kind, added.shape))
            return
    put_in = opset13.add(node.output(0), _constant(addend, kind, addend.shape))
    put_in.set_friendly_name(node.get_friendly_name() + _NAME)
    _hand_over(node.output(0), put_in.output(0), readers)


def _hand_over(old: Output, new: Output, readers: Sequence[Input]) -> None:
    """Let readers read another output, which gets the names of the tensor."""
    for reader in readers:
        reader.replace_source_output(new)
    names = old.get_names()
    old.set_names(set())
    new.set_names(names)


def _constant(value: Any, kind: Any, shape: Any) -> Any:
    import numpy as np
    from openvino import opset13

    return opset13.constant(np.asarray(value).astype(kind).reshape(tuple(shape))).output(0)
