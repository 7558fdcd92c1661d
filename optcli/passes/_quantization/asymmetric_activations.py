"""Which activations of a network are not symmetric about zero, and do not begin at it either.

ReLU gives nothing below zero, and its unsigned integers need no zero point. Swish (SiLU), GELU and
their like reach a little below zero and far above: a symmetric range spends half of the integers on
values that never come. NNCF's preset `mixed`, asymmetric for activations, is meant for these.

An asymmetric range has a zero point, which the kernels of OpenVINO subtract at every call. What
LayerNorm or a sum of branches gives is as far below zero as above it, but for the luck of the
calibration samples: there the zero point costs time and gains nothing, and `make_symmetric` takes it
away.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from optcli.models.formats.openvino import values_of
from optcli.models.onnx_graphs.graph import constant, maker, read
from optcli.passes._quantization.calibration import Range

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from onnx import ModelProto
    from onnx_ir import Node, Value
    from openvino import Model
    from openvino import Node as OpenvinoNode

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
# Of what an activation gives for x, the share of x that is nothing: a quarter of a step of 8 bits.
_NOTHING = 1 / 1024
# How far below zero it is tried, and in what steps.
_LOWEST, _STEPS = -128, 16

# Signed integers of 8 bits reach from -128 to 127.
_SIGNED_LOWEST, _SIGNED_HIGHEST = 128, 127
# How much wider a range may become. What is skewed would become far wider: in seven networks, of all
# ranges that grow by more, one grows by 13 % and the others by 35 % or more.
_MOST_GROWTH = 1.1


def in_onnx(model: ModelProto) -> tuple[str, ...]:
    """The names of such activations in an ONNX model, each once, however many nodes make one."""
    return tuple(sorted({name for name, *_ in _of_onnx(model)}))


def without_vanishing(model: ModelProto, ranges: Mapping[str, Range]) -> dict[str, Range]:
    """Ranges of values of an ONNX model, without the part for which an activation that reads them is 0.

    They would spend their integers on what is 0 in any case: in YOLOX-nano one value reaches from -99
    to 25. A range that lies below altogether stays, and so does one that others read as well.
    """
    result = dict(ranges)
    for _, value, last in _of_onnx(model):
        own = ranges.get(str(value.name))
        if own is None or own[0] >= 0 or value.is_graph_output():
            continue
        if all(_leads_to(last, reader) for reader in value.consumers()):
            least = _vanishes_below(value, last)
            if least is not None and own[0] < least < own[1]:
                result[str(value.name)] = (least, own[1])
    return result


def _vanishes_below(value: Value, last: Node) -> float | None:
    """Below what an activation gives nothing; None: nowhere, or its constants differ by channel."""
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper
    from onnx.reference import ReferenceEvaluator
    from onnx_ir import serde

    nodes: list[Node] = []
    constants: dict[str, np.ndarray] = {}

    def add(node: Node) -> bool:
        for each in node.inputs:
            tensor, before = constant(each), maker(each)
            if each is None or each is value or before in nodes:
                continue
            if tensor is not None and tensor.size == 1:
                constants[str(each.name)] = tensor.numpy()
            elif before is None or tensor is not None or not add(before):
                return False
        nodes.append(node)
        return True

    if not add(last):
        return None
    ends = [
        helper.make_tensor_value_info(str(each.name), TensorProto.FLOAT, None)
        for each in (value, last.outputs[0])
    ]
    graph = helper.make_graph(
        [serde.serialize_node(node) for node in nodes if node.op_type != "Constant"],
        "activation",
        ends[:1],
        ends[1:],
        [numpy_helper.from_array(number, name) for name, number in constants.items()],
    )
    opsets = last.graph.opset_imports if last.graph is not None else {}
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid(*each) for each in opsets.items()]
    )
    numbers = np.arange(_LOWEST * _STEPS, 0, dtype=np.float32) / _STEPS
    try:
        with np.errstate(over="ignore"):
            gives = ReferenceEvaluator(model).run(None, {str(value.name): numbers})[0]
    except NotImplementedError:  # an operator of ONNX Runtime's own
        return None
    vanishing = np.abs(gives) <= -_NOTHING * numbers
    return float(numbers[vanishing.argmin() - 1]) if vanishing[0] and not vanishing.all() else None


def _of_onnx(model: ModelProto) -> Iterator[tuple[str, Value, Node]]:
    """The name of each such activation, what it reads, and its last node."""
    for node in read(model).graph:
        if node.op_type in _ACTIVATIONS and node.inputs[0] is not None:
            yield _ACTIVATIONS[node.op_type], node.inputs[0], node
        elif node.op_type == "Mul" and len(node.inputs) == 2:
            for value, factor in (node.inputs, node.inputs[::-1]):
                gates = _gates(factor, value, _onnx_operator)
                if value is not None and gates:
                    yield from ((name, value, node) for name in _named(gates))


def _leads_to(last: Node, node: Node) -> bool:
    """Whether what a node gives goes nowhere but into the last one."""
    for _ in range(_DEEPEST):
        if node is last:
            return True
        readers = {*node.outputs[0].consumers()}
        if len(readers) != 1:
            return False
        node = readers.pop()
    return False


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


def make_symmetric(model: Model) -> tuple[int, int]:
    """Change the nearly symmetric ranges of an OpenVINO model that NNCF quantized, in place.

    Returns how many of its activations are symmetric or never negative now, and how many there are.
    """
    import numpy as np

    without, activations = 0, 0
    for node in model.get_ops():
        if node.get_type_name() != "FakeQuantize" or _is_constant(node, 0):
            continue
        activations += 1
        least, most, *out = (values_of(node.input_value(port)) for port in range(1, 5))
        if least is None or most is None:
            continue
        if (least >= 0).all():
            without += 1
            continue
        highest = np.maximum(most, -least * _SIGNED_HIGHEST / _SIGNED_LOWEST)
        lowest = -highest * _SIGNED_LOWEST / _SIGNED_HIGHEST
        little = (highest - lowest <= _MOST_GROWTH * (most - least)).all()
        if little and _is_of_nncf(node, (least, most), out):
            without += 1
            _set_range(node, lowest, highest)
    return without, activations


def _is_constant(node: OpenvinoNode, port: int) -> bool:
    return bool(node.input_value(port).get_node().get_type_name() == "Constant")


def _is_of_nncf(node: OpenvinoNode, goes_in: Sequence[Any], comes_out: Sequence[Any]) -> bool:
    """Whether all 256 integers are used, and what comes out is what goes in."""
    import numpy as np

    same = all(np.array_equal(*each) for each in zip(goes_in, comes_out, strict=True))
    return same and int(node.get_attributes()["levels"]) == _SIGNED_LOWEST + _SIGNED_HIGHEST + 1


def _set_range(node: OpenvinoNode, lowest: NDArray[Any], highest: NDArray[Any]) -> None:
    from openvino import opset13

    kind = node.input_value(1).get_element_type().to_dtype()
    ends = [opset13.constant(each.astype(kind)).output(0) for each in (lowest, highest)]
    for port in range(1, 5):
        node.input(port).replace_source_output(ends[(port - 1) % 2])
