"""The declared steps of a preparation on one image, and what to do where a step cannot take it.

The steps themselves are those of `data.images`, which a deployed server runs too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from optcli.data.preparation import Preparation
from optcli.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

    from optcli.data.images import PlacedImage

_CHANNELS = (1, 3, 4)
_HINTS = {
    "bits": "prepare: {range: [0, 65535]} says which values are black and white",
    "channel_order": "prepare: {channel_order: rgb} converts it (alpha is dropped)",
    "letterbox": "give one value, or one a channel",
    "layout": "prepare: {channel_order: grey}",
}


def written_out(steps: Preparation) -> dict[str, Any]:
    """Each step by its name, with its default where nobody set it: what `data.images` reads."""
    # A preset's fields are set; what nobody set has the default, which a dump leaves out.
    named = {name: getattr(steps, name) for name in Preparation.model_fields}
    if steps.letterbox is not None:
        named["letterbox"] = dict(steps.letterbox)
    for name in ("preset", "layout", "array_layout", "guessed"):
        named.pop(name)
    return named


def decoded(image: Image, steps: Preparation) -> np.ndarray:
    """The pixels of a PIL image, [height, width, 1 or 3], 0 to 255. Raises `InputError`."""
    from PIL import ImageOps

    from optcli.data.images import pixels_of

    if steps.orient:
        image = ImageOps.exif_transpose(image)
    with _refusals(steps):
        return pixels_of(image, steps.channel_order, steps.range)


def from_array(array: np.ndarray, layout: str | None) -> np.ndarray:
    """A stored array as [height, width, channels]. Raises `InputError` where its layout is unclear."""
    if layout is not None and array.ndim != len(layout):
        raise InputError(
            f"found an array of shape {array.shape}, wanted {layout}", hint="correct array_layout"
        )
    if array.ndim == 2:
        return array[:, :, None]
    if array.ndim == 3:
        first, last = array.shape[0] in _CHANNELS, array.shape[2] in _CHANNELS
        if layout == "chw" or (layout is None and first and not last):
            return array.transpose(1, 2, 0)
        if layout == "hwc" or (layout is None and last and not first):
            return array
    raise InputError(
        f"cannot tell the layout of an array of shape {array.shape}",
        hint="prepare: {array_layout: hwc} or chw",
    )


def transformed(pixels: np.ndarray, steps: Preparation) -> PlacedImage:
    """Resize, crop or letterbox, channel order, scale, mean and std; float64 where values change.

    Raises `InputError`.
    """
    from optcli.data import images

    with _refusals(steps):
        return images.transformed(pixels, written_out(steps))


def laid_out(
    pixels: np.ndarray, steps: Preparation, layout: str, shape: Sequence[int | str]
) -> np.ndarray:
    """[height, width, channels] in the order of `layout`, for an input of `shape` without the batch.

    Raises `InputError` where the image's channels are not the input's.
    """
    from optcli.data import images

    with _refusals(steps):
        return images.laid_out(pixels, layout, shape)


@contextmanager
def _refusals(steps: Preparation) -> Iterator[None]:
    from optcli.data.images import ImageStepError

    try:
        yield
    except ImageStepError as error:
        message, step, *wanted = error.args
        raise InputError(message, hint=_hint(steps, step, *wanted)) from error


def _hint(steps: Preparation, step: str, wanted: int = 0) -> str:
    if step == "crop" and steps.crop is not None:
        return f"prepare: {{resize: {max(steps.crop)}, crop: ...}} enlarges it first"
    if step in ("mean", "std"):
        order = "rgb" if len(getattr(steps, step)) == 3 else "grey"
        return f"prepare: {{channel_order: {order}}}"
    if step == "channels":
        order = {1: "grey", 3: "rgb"}.get(wanted, "")
        return f"prepare: {{channel_order: {order}}}" if order else "convert the data"
    return _HINTS[step]
