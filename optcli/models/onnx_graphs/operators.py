"""ONNX operators by what they do: ONNX's own and ONNX Runtime's (its docs/ContribOperators.md)."""

from __future__ import annotations

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


def is_static(operator: str) -> bool:
    """Whether an operator computes on integers by scales of its own: ONNX Runtime's QOperator form."""
    return operator.startswith("QLinear") or operator == "QGemm"


def weight_position(operator: str) -> int:
    """The position of the weights among the inputs of an operator in `PRODUCT_OF`.

    In QOperator form scale and zero point stand behind each of the two factors.
    """
    return 3 if is_static(operator) else 1
