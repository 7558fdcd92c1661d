"""Which activations of a network are not symmetric about zero, and do not begin at it either.

ReLU gives nothing below zero, and its unsigned integers need no zero point. Swish (SiLU), GELU and
their like reach a little below zero and far above: a symmetric range spends half of the integers on
values that never come. NNCF's preset `mixed`, asymmetric for activations, is meant for these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from optcli.onnx_graphs.graph import maker, read

if TYPE_CHECKING:
    from onnx import ModelProto
    from openvino import Model

# By operator, of ONNX or of OpenVINO: most have one name in both.
_ACTIVATIONS = {
    "Celu": "CELU",
    "Elu": "ELU",
    "Gelu": "GELU",
    "HardSwish": "hard swish",
    "HSwish": "hard swish",
    "LeakyRelu": "leaky ReLU",
    "Mish": "Mish",
    "PRelu": "PReLU",
    "Selu": "SELU",
    "Swish": "swish",
}
# What bounds the factor that a value is multiplied with, the more telling first.
_GATES = {
    "Softplus": "Mish",
    "SoftPlus": "Mish",
    "Erf": "GELU",
    "Tanh": "GELU",
    "HardSigmoid": "hard swish",
    "HSigmoid": "hard swish",
    "Clip": "hard swish",
    "Clamp": "hard swish",
    "Sigmoid": "swish",
}
# Between the value and the factor computed from it stand these alone: no weights, no pooling.
_BY_ELEMENT = {"Add", "Sub", "Mul", "Multiply", "Div", "Divide", "Pow", "Power", "Cast", "Identity"}
_DEEPEST = 7


def in_onnx(model: ModelProto) -> tuple[str, ...]:
    """The names of such activations in an ONNX model, each once, however many nodes make one."""
    names = set()
    for node in read(model).graph:
        if node.op_type in _ACTIVATIONS:
            names.add(_ACTIVATIONS[node.op_type])
        elif node.op_type == "Mul" and len(node.inputs) == 2:
            for value, factor in (node.inputs, node.inputs[::-1]):
                names |= _named(_gates(factor, value, _onnx_operator))
    return tuple(sorted(names))


def _onnx_operator(value: Any) -> tuple[str, Sequence[Any]]:
    node = maker(value)
    return (node.op_type, node.inputs) if node is not None else ("", ())


def in_openvino(model: Model) -> tuple[str, ...]:
    """The names of such activations in an OpenVINO model, each once, however many nodes make one."""
    names = set()
    for node in model.get_ops():
        kind = node.get_type_name()
        if kind in _ACTIVATIONS:
            names.add(_ACTIVATIONS[kind])
        elif kind == "Multiply":
            sources = node.input_values()
            for value, factor in (sources, sources[::-1]):
                names |= _named(_gates(factor, value, _openvino_operator))
    return tuple(sorted(names))


def _openvino_operator(output: Any) -> tuple[str, Sequence[Any]]:
    node = output.get_node()
    return node.get_type_name(), node.input_values()


def _gates(factor: Any, value: Any, operator_of: Any) -> set[str] | None:
    """The bounding operators between a value and a factor that is computed from it; None: it is not.

    x · sigmoid(x) is an activation; a factor that other layers compute, as in squeeze and excitation,
    is none.
    """
    reached, gates, edge = False, set(), [factor]
    for _ in range(_DEEPEST):
        further = []
        for name in edge:
            if name == value:
                reached = True
                continue
            operator, inputs = operator_of(name)
            if operator in _GATES or operator in _BY_ELEMENT:
                gates |= {operator} & _GATES.keys()
                further += inputs
        edge = further
    return gates if reached else None


def _named(gates: set[str] | None) -> set[str]:
    return {next(name for operator, name in _GATES.items() if operator in gates)} if gates else set()
