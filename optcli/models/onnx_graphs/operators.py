"""ONNX operators by what they do: ONNX, ONNX Runtime (docs/ContribOperators.md) and others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optcli.errors import InputError, excerpt
from optcli.models.onnx_graphs.protobuf import graphs

if TYPE_CHECKING:
    from onnx import ModelProto

# Operators that multiply by weights: the floating-point operator that each stands for.
PRODUCT_OF = {
    "Conv": "Conv", "FusedConv": "Conv", "QLinearConv": "Conv", "ConvInteger": "Conv",
    "ConvTranspose": "ConvTranspose",
    "Gemm": "Gemm", "QGemm": "Gemm",
    "MatMul": "MatMul", "QLinearMatMul": "MatMul", "MatMulInteger": "MatMul",
    "MatMulIntegerToFloat": "MatMul", "DynamicQuantizeMatMul": "MatMul", "MatMulNBits": "MatMul",
}  # fmt: skip
# Those in floating point.
PRODUCTS = frozenset(PRODUCT_OF.values())

PAIR = frozenset({"QuantizeLinear", "DequantizeLinear"})
# Integer operators that find the ranges of their activations, or leave them to others, at run time.
DYNAMIC = frozenset(
    {"DynamicQuantizeLinear", "ConvInteger", "MatMulInteger", "MatMulIntegerToFloat"}
    | {"DynamicQuantizeMatMul", "DynamicQuantizeLSTM"}
)

# Operators whose output holds every value of their first input, in another shape or order.
KEEPS_VALUES = frozenset(
    {"Identity", "Flatten", "Reshape", "Transpose", "Squeeze", "Unsqueeze"}
    | {"DepthToSpace", "SpaceToDepth"}
)
# Operators whose output values are values of their first input. Of Concat, those of all inputs.
MOVES_VALUES = KEEPS_VALUES | {"MaxPool", "Slice", "Split", "Gather"}

_ONNX = ("", "ai.onnx")
_EXTENSIONS = "the package onnxruntime-extensions"
_OWNERS = {
    "ai.onnx.contrib": _EXTENSIONS,
    "com.microsoft.extensions": _EXTENSIONS,
    "mmdeploy": "MMDeploy",
    "org.openvinotoolkit": "OpenVINO",
    "org.pytorch.aten": "PyTorch",
}


def is_static(operator: str) -> bool:
    """Whether an operator computes on integers by scales of its own: ONNX Runtime's QOperator form."""
    return operator.startswith("QLinear") or operator == "QGemm"


def weight_position(operator: str) -> int:
    """The position of the weights among the inputs of an operator in `PRODUCT_OF`.

    In QOperator form scale and zero point stand behind each of the two factors.
    """
    return 3 if is_static(operator) else 1


def foreign_operators(model: ModelProto) -> dict[str, str]:
    """Names of such operators, with their domain before them, and who has them, "" where unknown.

    A domain of ONNX Runtime's is not looked into: versions have different operators.
    """
    from onnx import defs

    known = {schema.domain for schema in defs.get_all_schemas()}
    own = {(function.domain, function.name) for function in model.functions}
    bodies = [graph.node for graph in graphs(model.graph)] + [each.node for each in model.functions]
    foreign: dict[str, str] = {}
    for node in (node for body in bodies for node in body):
        if (node.domain, node.op_type) in own:
            continue
        if node.domain in _ONNX and not defs.has(node.op_type):
            foreign[node.op_type] = "TensorRT's plugins" if node.op_type.endswith("_TRT") else ""
        elif node.domain not in (*known, *_ONNX) and not node.domain.startswith("com.microsoft"):
            foreign[f"{node.domain}.{node.op_type}"] = _OWNERS.get(node.domain, "")
        elif node.domain in _OWNERS:
            foreign[f"{node.domain}.{node.op_type}"] = _OWNERS[node.domain]
    return foreign


def described_foreign(foreign: dict[str, str]) -> str:
    """These operators in words."""
    owners = dict.fromkeys(owner or "nobody that is known here" for owner in foreign.values())
    names = excerpt(", ".join(foreign), 200)
    return f"it calls operators of {' and '.join(owners)}, which ONNX Runtime does not have: {names}"


def refused_foreign(foreign: dict[str, str], place: str) -> InputError:
    """The error for a file that cannot be run here because of them."""
    return InputError(
        described_foreign(foreign),
        place=place,
        hint="export the model without them, or cut the part around them off with"
        " onnx.utils.extract_model",
    )
