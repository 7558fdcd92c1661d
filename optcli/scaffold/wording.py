"""Words of recipes: values as YAML writes them, names that can be a folder's, inputs in one word."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from optcli.errors import UsageError
from optcli.settings import OfImage, TensorSpec, image_size

_PLAIN = re.compile(r"[A-Za-z_./~][\w./:+~-]*")
_WORDS = {"yes", "no", "on", "off", "true", "false", "null", "y", "n", "~"}
_INPUT = re.compile(r"(?P<name>[^\[\]]+?):(?P<dtype>\w+)\[(?P<shape>[^\]]*)\]")
# DETR's family takes `orig_target_sizes`, its own export as width and height; SAM `orig_im_size`.
_SIZE = re.compile(r"(orig(inal)?|image|img|im)_((target|image|img|im)_)?sizes?")
_BATCH = {"min": 1, "opt": 8, "max": 32}
_PIXELS = {"min": 224, "opt": 224, "max": 640}


def quoted(text: str) -> str:
    """Text as YAML reads it back: plain where that is safe, else in double quotes."""
    if _PLAIN.fullmatch(text) and text.lower() not in _WORDS and not text.endswith(":"):
        return text
    return json.dumps(text, ensure_ascii=False)


def safe_name(text: str) -> str:
    """A name that can be a folder's."""
    name = text.rpartition(":")[2].rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", name).strip("-.") or "model"


def relative(path: Path, folder: Path) -> str:
    """A path as a recipe in a folder names it; absolute where the two have nothing in common."""
    whole = os.path.abspath(path.expanduser())
    if os.path.commonpath([whole, os.path.abspath(folder)]) == os.sep:
        return whole
    return os.path.relpath(whole, folder)


def input_line(spec: TensorSpec) -> str:
    """One input as a recipe writes it."""
    shape = ", ".join(str(size) for size in spec.shape)
    ranges = "".join(
        f", {symbol}: {{min: {span.min}, opt: {span.opt}, max: {span.max}}}"
        for symbol, span in spec.ranges.items()
    )
    if spec.range is not None:
        ranges += f", range: [{spec.range[0]:g}, {spec.range[1]:g}]"
    number = list(spec.value) if isinstance(spec.value, tuple) else spec.value
    value = f", value: {number}" if number is not None else ""
    line = f"  - {{name: {quoted(spec.name)}, dtype: {spec.dtype}, shape: [{shape}]{ranges}{value}}}"
    if spec.value == "original_size":
        return f"{line}    # A GUESS: height, width; or original_size_wh, or value: [640, 640]"
    if spec.value == "original_size_wh":
        return f"{line}    # A GUESS: width, height; or original_size, or value: [640, 640]"
    if spec.value is not None:
        return f"{line}    # A GUESS: by its name"
    return line


def sized(inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """The inputs; those that by their names say something of a single image beside them get a value.

    That is its size before it was resized, or after (`im_shape` of PaddleDetection), or the factor.
    Where they are of one image whatever the batch of images, the batch is fixed at 1.
    """
    images = [spec for spec in inputs if len(spec.shape) == 4]
    if len(images) != 1:
        return tuple(inputs)
    image, others = images[0], [spec for spec in inputs if spec is not images[0]]
    size = None if any(isinstance(each, str) for each in image.shape[1:]) else image_size(images)
    values = {
        spec.name: _of_image(spec, size)
        for spec in others
        if spec.shape in ((image.shape[0], 2), (1, 2), (2,))
        and spec.dtype in ("int64", "int32", "float32")
    }
    if any(values.get(spec.name) is None for spec in others):
        return tuple(inputs)
    one = image
    if any(spec.shape[0] != image.shape[0] for spec in others):
        ranges = {name: span for name, span in image.ranges.items() if name != image.batch_symbol}
        one = image.model_copy(update={"shape": (1, *image.shape[1:]), "ranges": ranges})
    return tuple(
        one if spec is image else spec.model_copy(update={"value": values[spec.name]})
        for spec in inputs
    )


def _of_image(spec: TensorSpec, size: tuple[int, int] | None) -> OfImage | tuple[int, int] | None:
    if spec.name == "scale_factor":
        return "scale_factor" if spec.dtype == "float32" else None
    if spec.name == "im_shape":
        return size
    if _SIZE.fullmatch(spec.name):
        return "original_size_wh" if "target" in spec.name else "original_size"
    return None


class InputText:
    """`image:float32[batch,3,224,224]`, an input in one word of the command line."""

    @staticmethod
    def read(text: str) -> TensorSpec:
        """The input that a text describes. Raises `UsageError`."""
        match = _INPUT.fullmatch(text.strip())
        hint = 'such as --input "image:float32[batch,3,224,224]"'
        if match is None:
            message = f"found {text!r}, wanted NAME:DTYPE[SIZES]"
            raise UsageError(message, place="--input", hint=hint)
        sizes = [size.strip() for size in match["shape"].split(",")]
        try:
            return spec(match["name"], match["dtype"], [int(s) if s.isdigit() else s for s in sizes])
        except ValueError as error:
            lines = str(error).splitlines()
            reason = lines[2].strip() if len(lines) > 2 else lines[0]
            raise UsageError(f"{text!r}: {reason}", place="--input", hint=hint) from error


def spec(
    name: str,
    dtype: str,
    shape: list[int | str],
    bounds: Mapping[str, Sequence[int]] | None = None,
) -> TensorSpec:
    """An input whose batch varies from 1 to 32, and other sizes as those of images do.

    `bounds` holds the least and the largest size that some symbols may have.
    """
    ranges = {size: _PIXELS for size in shape[1:] if isinstance(size, str)}
    ranges |= {shape[0]: _BATCH} if shape and isinstance(shape[0], str) else {}
    for size, (low, high) in (bounds or {}).items():
        if size in ranges:
            usual = ranges[size]
            ranges[size] = {key: max(low, min(value, high)) for key, value in usual.items()}
    return TensorSpec.model_validate({"name": name, "dtype": dtype, "shape": shape, **ranges})
