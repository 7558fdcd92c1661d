"""Ranges of activations that are nearly symmetric about zero, made symmetric.

An asymmetric range has a zero point, which the kernels of OpenVINO subtract at every call. It pays
where values are skewed, as behind GELU. What LayerNorm or a sum of branches gives is as far below zero
as above it, but for the luck of the calibration samples: there the zero point costs time and gains
nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optcli.models.formats.openvino import values_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray
    from openvino import Model, Node

# Signed integers of 8 bits reach from -128 to 127.
_LOWEST, _HIGHEST = 128, 127
# How much wider a range may become. What is skewed would become far wider: in seven networks, of all
# ranges that grow by more, one grows by 13 % and the others by 35 % or more.
_MOST_GROWTH = 1.1


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
        highest = np.maximum(most, -least * _HIGHEST / _LOWEST)
        lowest = -highest * _LOWEST / _HIGHEST
        little = (highest - lowest <= _MOST_GROWTH * (most - least)).all()
        if little and _is_of_nncf(node, (least, most), out):
            without += 1
            _set_range(node, lowest, highest)
    return without, activations


def _is_constant(node: Node, port: int) -> bool:
    return bool(node.input_value(port).get_node().get_type_name() == "Constant")


def _is_of_nncf(node: Node, goes_in: Sequence[Any], comes_out: Sequence[Any]) -> bool:
    """Whether all 256 integers are used, and what comes out is what goes in."""
    import numpy as np

    same = all(np.array_equal(*each) for each in zip(goes_in, comes_out, strict=True))
    return same and int(node.get_attributes()["levels"]) == _LOWEST + _HIGHEST + 1


def _set_range(node: Node, lowest: NDArray[Any], highest: NDArray[Any]) -> None:
    from openvino import opset13

    kind = node.input_value(1).get_element_type().to_dtype()
    ends = [opset13.constant(each.astype(kind)).output(0) for each in (lowest, highest)]
    for port in range(1, 5):
        node.input(port).replace_source_output(ends[(port - 1) % 2])
