"""OpenVINO: `model.xml` (the graph) and `model.bin` (the weights)."""

from __future__ import annotations

import math
import os
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli.errors import InputError, first_line

if TYPE_CHECKING:
    import numpy as np
    from openvino import Core, Model, PartialShape

    from optcli.settings import TensorSpec

# How OpenVINO names what it cannot read: integer operators, and those of Microsoft's own domains.
_ONNXRUNTIME_ONLY = re.compile(r"[Cc]onversion .*(QLinear|Integer|com\.microsoft)")

# Operators that multiply by weights.
PRODUCTS = frozenset(
    {"Convolution", "GroupConvolution", "ConvolutionBackpropData", "MatMul"}
    | {"GroupConvolutionBackpropData"}
)
# Operators that hand quantized values on as they are, or cut them off.
MOVES_VALUES = frozenset(
    {"Concat", "MaxPool", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "StridedSlice", "Slice"}
    | {"Split", "VariadicSplit", "Gather", "Relu", "Clamp"}
)

# What lies between integer weights and the layer that reads them.
_OF_CONSTANTS = frozenset({"Convert", "Subtract", "Multiply", "Reshape"})

# NumPy's names of element types.
DTYPES = {"f32": "float32", "f16": "float16", "f64": "float64", "bf16": "bfloat16"}
DTYPES |= {f"{sign}{bits}": f"{kind}{bits}" for sign, kind in (("i", "int"), ("u", "uint"))
           for bits in (4, 8, 16, 32, 64)}  # fmt: skip
_FLOATS = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "f64": "fp64"}

FILE = "model.xml"
WEIGHTS = "model.bin"


def core() -> Core:
    """A new OpenVINO core; every use of OpenVINO begins here, so that nothing is ever reported home."""
    forbid_telemetry()
    import openvino

    return openvino.Core()


def open(folder: Path) -> Model:
    """The model, not compiled. Raises `InputError` where the two files are not a sound model."""
    path = folder / FILE
    if not path.is_file():
        raise InputError("the OpenVINO model is missing", place=str(folder), hint="build again")
    weights = folder / WEIGHTS
    if not weights.is_file():
        named = weights.readlink().name if weights.is_symlink() else WEIGHTS
        hint = f"copy {named} beside the .xml file; a variant's is made by building again"
        raise InputError(f"its weights, {named}, are missing", place=str(path), hint=hint)
    try:
        return core().read_model(os.fspath(path))
    except RuntimeError as error:
        raise InputError(
            f"this is not a valid OpenVINO model: {reason(error)}",
            place=str(path),
            hint="convert the model again",
        ) from error


def save(model: Model, folder: Path) -> None:
    """Write the model with its weights as they are (no silent halving to FP16)."""
    import openvino

    openvino.save_model(model, os.fspath(folder / FILE), compress_to_fp16=False)


def input_names(model: Model) -> tuple[str, ...]:
    """Names of the inputs, in order."""
    return tuple(_name(port) for port in model.inputs)


def output_names(model: Model) -> tuple[str, ...]:
    """Names of the outputs, in order."""
    return tuple(_name(port) for port in model.outputs)


def sizes(port: Any) -> list[int | None] | None:
    """The shape of an input or output; None for a size that varies, and for a shape of any length."""
    shape = port.get_partial_shape()
    if shape.rank.is_dynamic:
        return None
    return [None if size.is_dynamic else size.get_length() for size in shape]


def is_quantized(model: Model) -> bool:
    """Whether the model was quantized: NNCF leaves one FakeQuantize where integers begin."""
    return any(node.get_type_name() == "FakeQuantize" for node in model.get_ops())


def integer_weights(model: Model) -> list[str]:
    """The types (`i8`, `u8`, `i4`, `u4`) of weights that are kept in integers and computed in floats.

    Such a weight is converted, freed of its zero point and scaled.
    """
    kinds = []
    for node in model.get_ops():
        if node.get_type_name() != "Convert" or len(node.inputs()) != 1:
            continue
        kind = node.input_value(0).get_element_type().get_type_name()
        reads = [
            (reader.get_node().get_type_name(), reader.get_index())
            for reader in node.output(0).get_target_inputs()
        ]
        constant = node.input_value(0).get_node().get_type_name() == "Constant"
        weight = any(name in ("Multiply", "Subtract") and index == 0 for name, index in reads)
        if constant and weight and kind in ("i8", "u8", "i4", "u4"):
            kinds.append(kind)
    return kinds


def precision(model: Model) -> str | None:
    """`int8` where activations are quantized, `int8-weights` or `int4-weights`; None for floats."""
    if is_quantized(model):
        return "int8"
    kinds = set(integer_weights(model))
    if not kinds:
        return None
    return "int4-weights" if kinds & {"i4", "u4"} else "int8-weights"


def stored_precision(model: Model) -> str:
    """What the weights are stored in: integers as `precision` says, else the float type of the most."""
    counts: Counter[str] = Counter()
    for node in model.get_ops():
        kind = node.get_output_element_type(0).get_type_name() if node.get_output_size() else ""
        if node.get_type_name() == "Constant" and kind in _FLOATS:
            counts[_FLOATS[kind]] += math.prod(node.get_output_shape(0))
    return precision(model) or max(counts, key=lambda kind: counts[kind], default="fp32")


def tensor(name: str, port: Any) -> dict[str, Any]:
    """An input or output as facts: its name, NumPy's name of its element type, and its sizes."""
    kind = port.element_type.get_type_name()
    return {"name": name, "dtype": DTYPES.get(kind, kind), "shape": sizes(port)}


def shapes(inputs: Sequence[TensorSpec]) -> dict[str, PartialShape]:
    """The shapes by input name; sizes that vary are open."""
    import openvino

    return {
        spec.name: openvino.PartialShape([-1 if isinstance(size, str) else size for size in spec.shape])
        for spec in inputs
    }


def forbid_telemetry() -> None:
    """Make the reporting package impossible to import: OpenVINO and NNCF then use their own stubs.

    Both send an event as soon as they are imported and offer no switch for it. Call this before.
    """
    sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]


def _name(port: Any) -> str:
    names = port.get_names()
    return str(port.get_any_name()) if names else str(port.get_node().get_friendly_name())


def reason(error: Exception) -> str:
    """What an error says: OpenVINO begins with positions in its own source, the last line matters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return first_line(ValueError(lines[-1].removeprefix("-- "))) if lines else type(error).__name__


def unknown_operators_hint(error: Exception) -> str:
    """What to do where OpenVINO lacks operators that ONNX Runtime has; empty for other errors."""
    if not _ONNXRUNTIME_ONLY.search(str(error)):
        return ""
    return (
        "these are ONNX Runtime's operators: set `runner: onnxruntime`, or make the model without them "
        "(`format: qdq` in quantize_onnxruntime, no `level:` in optimize_onnx)"
    )


def values_of(port: Any) -> np.ndarray | None:
    """What a constant, or what is computed from constants alone, holds as floats."""
    import numpy as np

    node = port.get_node()
    kind = node.get_type_name()
    if kind == "Constant":
        return np.asarray(node.data, np.float32)
    if kind not in _OF_CONSTANTS:
        return None
    inputs = []
    for each in node.input_values():
        array = values_of(each)
        if array is None:  # at once: paths through a network double with every branch
            return None
        inputs.append(array)
    if kind == "Convert":
        return inputs[0]
    if kind == "Subtract":
        return np.asarray(inputs[0] - inputs[1])
    if kind == "Multiply":
        return np.asarray(inputs[0] * inputs[1])
    return np.reshape(inputs[0], tuple(port.get_shape()))
