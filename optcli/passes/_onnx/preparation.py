"""The steps of a preparation as ONNX operators: from pixels of uint8 to the network's input.

They do what `data/images.py` does with Pillow. Resize with `antialias` and `exclude_outside` computes
Pillow's bilinear and bicubic filters, and rounds to bytes as Pillow does. OpenVINO's reader of ONNX
files leaves `antialias` out: the pass that writes its format puts it in again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto
    from openvino import Model

OPSET = 18  # Resize has `antialias` since
_FILTERS: Mapping[str, Mapping[str, Any]] = {
    "nearest": {"mode": "nearest", "nearest_mode": "round_prefer_ceil"},
    "bilinear": {"mode": "linear", "antialias": 1, "exclude_outside": 1},
    "bicubic": {"mode": "cubic", "antialias": 1, "exclude_outside": 1, "cubic_coeff_a": -0.5},
}
FILTERS = tuple(_FILTERS)

# OpenVINO's modes that antialias, by ONNX's: Pillow's filters, which ONNX's are too.
_MODES = {"linear": "bilinear_pillow", "cubic": "bicubic_pillow"}
_PILLOWS_CUBIC = -0.5
_RANK = 4


class Steps:
    """Nodes and constants, one after the other; names begin with `prefix`, which no other has."""

    def __init__(self, prefix: str) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self._prefix = prefix

    def constant(self, values: Any, dtype: Any) -> str:
        """The name of a constant."""
        import numpy as np
        from onnx import numpy_helper

        name = f"{self._prefix}/constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.array(values, dtype), name))
        return name

    def add(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """The name of a node's output."""
        from onnx import helper

        name = f"{self._prefix}/{operator}_{len(self.nodes)}"
        result = output or f"{name}_output"
        self.nodes.append(helper.make_node(operator, inputs, [result], name, **attributes))
        return result

    def prepared(
        self,
        pixels: str,
        output: str,
        steps: Mapping[str, Any],
        *,
        all_steps: bool,
        last: tuple[bool, bool],
        channels: int,
        dtype: str,
    ) -> None:
        """Add what makes the tensor `output` of the tensor `pixels`.

        `last` says whether the channels are the last dimension of the pixels, and of the output.
        Without `all_steps` the pixels have the network's size already.
        """
        import numpy as np
        from onnx import helper

        image = self.add("Transpose", pixels, perm=[0, 3, 1, 2]) if last[0] else pixels
        if all_steps:
            if steps["resize_in"] == "float32":
                image = self.add("Cast", image, to=helper.np_dtype_to_tensor_dtype(np.dtype("f4")))
            image = self._sized(image, steps)
        if steps["channel_order"] == "bgr":
            image = self.add("Gather", image, self.constant([2, 1, 0], "i8"), axis=1)
        image = self.add("Cast", image, to=helper.np_dtype_to_tensor_dtype(np.dtype("f4")))
        std = np.array(steps["std"])
        factor, offset = steps["scale"] / std, -np.array(steps["mean"]) / std
        for operator, values, neutral in (("Mul", factor, 1), ("Add", offset, 0)):
            if (values != neutral).any():
                row = np.broadcast_to(values, channels).reshape(1, channels, 1, 1)
                image = self.add(operator, image, self.constant(row, "f4"))
        if dtype != "float32":
            image = self.add("Cast", image, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
        if last[1]:
            self.add("Transpose", image, perm=[0, 2, 3, 1], output=output)
        else:
            self.add("Identity", image, output=output)

    def _sized(self, image: str, steps: Mapping[str, Any]) -> str:
        """Resize, crop or letterbox."""
        if steps["resize"] is not None or steps["multiple_of"] is not None:
            image = self._resized(image, self._target(image, steps), steps["interpolation"])
        if steps["crop"] is not None:
            image = self._cropped(image, steps["crop"], steps["crop_rounding"])
        if steps["letterbox"] is not None:
            image = self._letterboxed(image, steps["letterbox"], steps["interpolation"])
        return image

    def _resized(self, image: str, size: str, interpolation: str) -> str:
        # ONNX Runtime moves transposes over Resize, and then takes its `axes` for what they were.
        whole = self.add("Concat", self.add("Shape", image, end=2), size, axis=0)
        return self.add("Resize", image, "", "", whole, **_FILTERS[interpolation])

    def _height_and_width(self, image: str) -> str:
        """Both as float64, in which Python computes sizes, too."""
        return self.add("Cast", self.add("Shape", image, start=2), to=11)  # TensorProto.DOUBLE

    def _whole(self, values: str) -> str:
        return self.add("Cast", values, to=7)  # TensorProto.INT64

    def _target(self, image: str, steps: Mapping[str, Any]) -> str:
        """The size after resizing: see `data.images._target_size`."""
        wanted, step = steps["resize"], steps["multiple_of"]
        if isinstance(wanted, Sequence):
            rounded = [max(size // (step or 1), 1) * (step or 1) for size in wanted]
            return self.constant(rounded, "i8")
        size = self._height_and_width(image)
        if wanted is not None:
            shorter, longer = (self.add(kind, size, keepdims=1) for kind in ("ReduceMin", "ReduceMax"))
            exact = self.constant([wanted], "f8")
            if steps["longest"] is not None:
                scaled = self.add("Mul", self.constant([steps["longest"]], "f8"), shorter)
                exact = self.add("Min", exact, self.add("Div", scaled, longer))
            longest = self.add("Floor", self.add("Div", self.add("Mul", exact, size), shorter))
            is_shorter = self.add("Equal", size, shorter)
            size = self.add("Where", is_shorter, self.add("Round", exact), longest)
        if step is not None:
            unit = self.constant([step], "f8")
            times = self.add("Floor", self.add("Div", size, unit))
            size = self.add("Mul", self.add("Max", times, self.constant([1], "f8")), unit)
        return self._whole(size)

    def _cropped(self, image: str, size: Sequence[int], rounding: str) -> str:
        wanted = self.constant(size, "f8")
        left_over = self.add("Sub", self._height_and_width(image), wanted)
        half = self.add("Div", left_over, self.constant([2], "f8"))
        start = self.add("Round" if rounding == "even" else "Floor", half)
        ends = self._whole(self.add("Add", start, wanted))
        return self.add("Slice", image, self._whole(start), ends, self.constant([2, 3], "i8"))

    def _letterboxed(self, image: str, box: Mapping[str, Any], interpolation: str) -> str:
        size, room = self._height_and_width(image), self.constant(box["size"], "f8")
        ratio = self.add("ReduceMin", self.add("Div", room, size), keepdims=1)
        one = self.constant([1], "f8")
        if not box["enlarge"]:
            ratio = self.add("Min", ratio, one)
        scaled = self.add("Max", self.add("Round", self.add("Mul", size, ratio)), one)
        image = self._resized(image, self._whole(scaled), interpolation)
        rest = self.add("Sub", room, scaled)
        before = self.add("Floor", self.add("Div", rest, self.constant([2], "f8")))
        if box["align"] == "top_left":
            before = self.constant([0, 0], "f8")
        margins = self.add("Concat", before, self.add("Sub", rest, before), axis=0)
        pads, axes = self._whole(margins), self.constant([2, 3], "i8")
        fills = [self._fill(image, value) for value in box["fill"]]
        if len(fills) == 1:
            return self.add("Pad", image, pads, fills[0], axes)
        planes = [
            self.add("Gather", image, self.constant([channel], "i8"), axis=1)
            for channel in range(len(fills))
        ]
        padded = [
            self.add("Pad", plane, pads, fill, axes) for plane, fill in zip(planes, fills, strict=True)
        ]
        return self.add("Concat", *padded, axis=1)

    def _fill(self, image: str, value: float) -> str:
        """A value of the rest, in the type of the image."""
        return self.add("CastLike", self.constant(int(value) if value % 1 else value, "f4"), image)


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
