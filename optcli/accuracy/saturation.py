"""Whether INT8 weights use the full range: on CPUs without VNNI sums of their products saturate.

x86 without VNNI multiplies 8-bit integers in pairs and adds each pair in 16 bits (vpmaddubsw):
2 · 255 · 127 does not fit, 2 · 255 · 64 does. So a file is right on one CPU and wrong on another.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from optcli import environment
from optcli.artifact import Artifact, Format
from optcli.settings.accuracy import AccuracySettings

if TYPE_CHECKING:
    import numpy as np

_INTEGERS = ("int8", "int8-dynamic")  # not weights alone, which are computed with in floats
_REDUCED = 64


def full_range(artifact: Artifact) -> bool | None:
    """Whether 8-bit weights go beyond 7 bits; None where there are none, or nobody can tell.

    A pass that says `reduce_range` is believed: NNCF keeps 8 bits in depthwise convolutions, whose sums
    do not saturate in ONNX Runtime and OpenVINO.
    """
    if artifact.precision not in _INTEGERS:
        return None
    if artifact.facts.get("reduce_range") is True:
        return False
    if artifact.format == Format.ONNX:
        are_full = [_is_full(array) for array in _onnx_weights(artifact)]
    elif artifact.format == Format.OPENVINO:
        are_full = [_is_full(array) for array in _openvino_weights(artifact)]
    else:
        reduced = artifact.facts.get("reduce_range")
        return None if reduced is None else not reduced
    return any(are_full) if are_full else None


def warning(full: bool | None, settings: AccuracySettings | None) -> str | None:
    """What to say of full-range weights where they are to be served; None: nothing."""
    isa = (settings.target_isa if settings else None) or environment.isa()
    if not full or not environment.sums_saturate(isa):
        return None
    return (
        f"the INT8 weights use all 8 bits, and {isa} has no VNNI: sums of products saturate there, and"
        " what is right on another CPU may be wrong on it; reduce_range: true keeps weights to 7 bits"
    )


def _is_full(array: np.ndarray) -> bool:
    import numpy as np

    values = array.astype(np.int16)
    low, high = int(values.min(initial=0)), int(values.max(initial=0))
    return high - low > 2 * _REDUCED if array.dtype == np.uint8 else max(-low, high) > _REDUCED


def _onnx_weights(artifact: Artifact) -> Iterator[np.ndarray]:
    from onnx import TensorProto, numpy_helper

    from optcli.models.formats import onnx as onnx_format

    for tensor in onnx_format.open(artifact.path).graph.initializer:
        if tensor.data_type in (TensorProto.INT8, TensorProto.UINT8) and len(tensor.dims) > 1:
            yield numpy_helper.to_array(tensor)


def _openvino_weights(artifact: Artifact) -> Iterator[np.ndarray]:
    from optcli.models.formats import openvino as openvino_format

    for node in openvino_format.open(artifact.path).get_ops():
        if node.get_type_name() != "Constant" or len(node.get_output_shape(0)) < 2:
            continue
        if node.get_output_element_type(0).get_type_name() in ("i8", "u8"):
            yield node.data
