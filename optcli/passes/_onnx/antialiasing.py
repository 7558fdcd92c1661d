"""Resize with `antialias` in OpenVINO, whose reader of ONNX files leaves that out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto
    from openvino import Model

# OpenVINO's modes that antialias, by ONNX's: Pillow's filters, which ONNX's are too.
_MODES = {"linear": "bilinear_pillow", "cubic": "bicubic_pillow"}
_PILLOWS_CUBIC = -0.5
_RANK = 4


def antialiased(model: ModelProto) -> dict[str, str]:
    """OpenVINO's mode by the output of each Resize that antialiases as Pillow does."""
    from onnx.helper import get_attribute_value

    modes: dict[str, str] = {}
    for node in model.graph.node:
        if node.op_type != "Resize":
            continue
        says = {each.name: get_attribute_value(each) for each in node.attribute}
        mode = says.get("mode", b"nearest").decode()
        plain = says.get("coordinate_transformation_mode", b"half_pixel") == b"half_pixel"
        if says.get("antialias") and plain and mode in _MODES:
            modes[node.output[0]] = _MODES[mode]
    return modes


def antialias(model: Model, modes: Mapping[str, str]) -> None:
    """Write OpenVINO's operators that antialias for what was read of such a Resize, in place."""
    import numpy as np
    from openvino import opset13

    for node in model.get_ordered_ops():
        named = node.output(0).get_names() & modes.keys()
        if node.get_type_name() != "Interpolate" or not named:
            continue
        if node.output(0).get_partial_shape().rank != _RANK:
            continue
        mode = modes[min(named)]
        axes = opset13.constant(np.array([2, 3]))
        sizes = opset13.gather(node.input_value(1), axes, opset13.constant(np.int64(0)))
        resized = opset13.interpolate(
            node.input_value(0),
            sizes,
            mode,
            node.get_attributes()["shape_calculation_mode"],
            cube_coeff=_PILLOWS_CUBIC,
            axes=axes,
        )
        resized.output(0).set_names(node.output(0).get_names())
        node.output(0).replace(resized.output(0))
    model.validate_nodes_and_infer_types()
