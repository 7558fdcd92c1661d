"""How an image becomes an input: the declared steps, in a fixed order.

Whatever their order in the recipe, the steps run as

    decode > resize > crop or letterbox > channel_order > scale > mean and std > layout > dtype

Decoding gives grey or RGB values as they are stored, 0..255. Nothing is scaled unless `scale` says
so: without it a float input sees 0..255. A palette is expanded. An image keeps its channels: grey
stays grey. Only where `channel_order` is declared is it converted, alpha is dropped (as torchvision's
loaders do) and CMYK becomes RGB. Grey images with more than 8 bits need a `range`. EXIF orientation
is left alone, as torchvision leaves it, unless `orient` is true; of several frames the first is taken.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from optcli.errors import excerpt
from optcli.settings import Abbreviated, Finite, Settings
from optcli.settings.references import SourceReference

Interpolation = Literal["nearest", "box", "bilinear", "bicubic", "lanczos"]
Pixels = Annotated[int, Field(ge=1)]


_SAME = 1e-3  # values that are as close are rounded otherwise, or written so
_FRACTION = re.compile(r"\d{1,15}(\.\d{1,15})?/\d{1,15}(\.\d{1,15})?", re.ASCII)


def _pair(value: Any) -> Any:
    """One number as a square, so that every size reads as (height, width)."""
    return (value, value) if isinstance(value, int) and not isinstance(value, bool) else value


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _fraction(value: Any) -> Any:
    """`1/255` as written in YAML is text."""
    if isinstance(value, str) and "/" in value:
        text = value.replace(" ", "")
        # No exponents: Fraction writes them out, a million digits where a million is asked for.
        if _FRACTION.fullmatch(text) and float(text.partition("/")[2]):
            over, _, under = text.partition("/")
            return float(Fraction(over) / Fraction(under))
        value_given = excerpt(value)
        raise ValueError(f"wanted a number or a fraction such as 1/255, found {value_given!r}")
    return value


Size = Annotated[
    tuple[Pixels, Pixels],
    BeforeValidator(_pair, json_schema_input_type=Pixels | tuple[Pixels, Pixels]),
]
PerChannel = Annotated[
    tuple[float, ...],
    BeforeValidator(_listed, json_schema_input_type=float | list[float]),
    Field(min_length=1, max_length=4),
]


class Letterbox(Settings):
    """Fit the whole image into `size` without distorting it and fill the rest.

    YOLOX puts the image at the top left, most others in the middle.
    """

    size: Size = Field(description="height and width, or one number for both")
    fill: PerChannel = Field(
        (114.0,), description="pixel value of the rest, 0 to 255: one, or one per channel"
    )
    align: Literal["centre", "top_left"] = Field("centre", description="where the image lies")
    enlarge: bool = Field(True, description="images smaller than `size` are enlarged to it")


class Preparation(Abbreviated):
    """The steps from an image to an input.

    The order of the steps is fixed: resize, crop or letterbox, channel order, scale, mean and std,
    layout.

    `prepare: torchvision:ResNet50_Weights.DEFAULT` is short for `{preset: ...}` and gives what the
    `transforms()` of those torchvision weights give on PIL images (`torchvision:resnet50` means the
    default weights of that model); `prepare: timm:NAME` is timm's own, `prepare: hf:FOLDER` what the
    image processor of transformers in a folder, or in a repository in the cache, does. Fields set
    beside `preset` take the place of its own.
    """

    short_for: ClassVar[str] = "preset"

    preset: Annotated[str, SourceReference(places=("hf",))] | None = Field(
        None,
        pattern=r"^((torchvision|timm):\w+(\.\w+)?|hf:.+)$",
        description="the preparation of torchvision weights, or of a model of timm or transformers",
        examples=["torchvision:ResNet50_Weights.DEFAULT", "timm:resnet18.a1_in1k", "hf:models/vit"],
    )
    orient: bool = Field(False, description="turn a photograph as its EXIF orientation says")
    range: tuple[Finite, Finite] | None = Field(
        None,
        description="values of a grey image with more than 8 bits, such as an X-ray's [0, 65535]: the"
        " first becomes 0 and the second 255, before all other steps",
    )
    resize: Pixels | tuple[Pixels, Pixels] | None = Field(
        None,
        description="pixels of the shorter side, with the longer in proportion; or [height, width]",
    )
    longest: Pixels | None = Field(
        None, description="pixels of the longer side at most, where `resize` says the shorter"
    )
    multiple_of: Pixels | None = Field(
        None, description="height and width become multiples of this, the next smaller ones"
    )
    interpolation: Interpolation = Field(
        "bilinear", description="Pillow's filter for resizing; all antialias"
    )
    resize_in: Literal["uint8", "float32"] = Field(
        "uint8",
        description="what resizing computes in: `uint8` rounds as torchvision does on PIL images,"
        " `float32` as it does on tensors",
    )
    crop: Size | None = Field(
        None, description="pixels to cut out of the centre: a number or [height, width]"
    )
    crop_rounding: Literal["even", "down"] = Field(
        "even",
        description="where half a pixel is left before the crop: to the even neighbour, as in"
        " torchvision, or down, as in transformers",
    )
    letterbox: Letterbox | None = None
    channel_order: Literal["rgb", "bgr", "grey"] | None = Field(
        None, description="channels to convert the image to; default: it keeps its own"
    )
    scale: Annotated[float, BeforeValidator(_fraction, json_schema_input_type=float | str)] = Field(
        1.0,
        gt=0,
        description="factor of the pixel values, often 1/255; with 1 they stay 0 to 255",
    )
    mean: PerChannel = Field(
        (0.0,), description="what is subtracted after `scale`: one, or one per channel"
    )
    std: PerChannel = Field(
        (1.0,), description="what is divided by after `mean`: one, or one per channel"
    )
    layout: Literal["chw", "hwc", "hw", "nchw", "nhwc"] | None = Field(
        None,
        description="order of the dimensions of the input; default: as the input's shape says, with"
        " channels first where it leaves that open",
    )
    array_layout: Literal["chw", "hwc", "hw"] | None = Field(
        None,
        description="npz: order of the dimensions of the stored arrays; default: told from their shape",
    )
    inside: Literal["values", "all"] | None = Field(
        None,
        description="what of these steps the model does itself, on pixels of uint8: `values` (order of"
        " channels, scale, mean and std) or `all`; default: nothing. Of a variant with"
        " `embed_preparation` it is known",
    )
    guessed: bool = Field(
        False,
        description="nobody has checked these steps: a build tries other channel orders and scales on"
        " some samples",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.letterbox and (self.resize or self.crop or self.multiple_of):
            raise ValueError("letterbox brings its own size: wanted no resize or crop beside it")
        if self.longest is not None and not isinstance(self.resize, int):
            raise ValueError("longest bounds `resize: PIXELS`, which is not there")
        if self.range is not None and self.range[0] == self.range[1]:
            raise ValueError(f"found range: {list(self.range)}, wanted two values: black and white")
        if any(value <= 0 for value in self.std):
            raise ValueError("std is divided by: wanted numbers above 0")
        return self

    @model_serializer(mode="wrap")
    def _only_what_was_set(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Plain data crosses to workers, and there too a default must not take a preset's place."""
        set_fields = self.model_fields_set - {"guessed"}  # which changes no sample
        return {name: value for name, value in plain(self).items() if name in set_fields}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"anyOf": [{"type": "string", "pattern": "^(torchvision|timm|hf):"}, handler(schema)]}


def other_values(one: Preparation, other: Preparation) -> list[str]:
    """The steps by which two preparations give a pixel other values, with what each of them says.

    Sizes, crops and filters are not looked at. Presets must be spelled out.
    """
    differences = []
    if (one.channel_order == "bgr") != (other.channel_order == "bgr"):
        differences.append(
            f"channel_order {one.channel_order or 'as it is'} and {other.channel_order or 'as it is'}"
        )
    if one.range != other.range:
        differences.append(
            f"range {one.range and list(one.range)} and {other.range and list(other.range)}"
        )
    one_range, other_range = _extremes(one), _extremes(other)
    if any(
        not math.isclose(a, b, rel_tol=_SAME, abs_tol=_SAME)
        for a, b in zip(one_range, other_range, strict=True)
    ):
        black_and_white = (f"{low:.3g} to {high:.3g}" for low, high in (one_range[:2], other_range[:2]))
        differences.append(f"values from {' and '.join(black_and_white)} (scale, mean, std)")
    return differences


def _extremes(steps: Preparation) -> list[float]:
    """What black and white become, in each of three channels."""
    means, stds = (each * 3 if len(each) == 1 else each for each in (steps.mean, steps.std))
    return [
        (value * steps.scale - mean) / std
        for mean, std in zip(means[:3], stds[:3], strict=False)
        for value in (0, 255)
    ]
