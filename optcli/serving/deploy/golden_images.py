"""A golden image: the bytes of an evaluation sample, and the answer that belongs to them.

What a bundle's own modules make of the bytes is compared with the golden request, which optcli's own
preparation made of the same sample. So the two preparations cannot differ unseen.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli import data
from optcli.data import DataSettings, Preparation, steps
from optcli.errors import InputError
from optcli.files import regular_files
from optcli.pipeline.model_files.built_variant import BuiltVariant
from optcli.serving.deploy.interface import REQUEST, RESPONSE
from optcli.serving.prediction.of_recipe import FORMATS, ImageServing

if TYPE_CHECKING:
    import numpy as np

ANSWER = "golden-answer.json"
_MOST_BYTES = 64 * 1024 * 1024
_NAME, _SUFFIXES = "golden-image", {"JPEG": "jpg", "PNG": "png"}


def found(folder: Path) -> tuple[Path, Path] | None:
    """The golden image of a deployment and its answer; None where it has none."""
    images = [folder / f"{_NAME}.{suffix}" for suffix in _SUFFIXES.values()]
    image = next((path for path in images if path.is_file()), None)
    answer = folder / ANSWER
    return (image, answer) if image is not None and answer.is_file() else None


def write(folder: Path, built: BuiltVariant, serving: ImageServing) -> str | None:
    """Write a golden image and its answer beside the golden request; gives the image's name.

    None where there is no golden request of a sample, or no such image. Raises `InputError` where
    the bundle's modules prepare the sample otherwise than optcli does.
    """
    settings = built.samples.data
    if settings is None or not all((folder / name).is_file() for name in (REQUEST, RESPONSE)):
        return None
    samples = data.open(settings, built.samples.folder, built.inputs)
    item = samples.read(0)
    encoded = _bytes(item.raw[serving.images["input"]], item.place, settings)
    if encoded is None:
        return None
    kind, body = encoded
    inputs, outputs = _tensors(folder / REQUEST, "inputs"), _tensors(folder / RESPONSE, "outputs")
    from optcli.data.images import Images
    from optcli.outputs.postprocess import Postprocess

    taking = Images(serving.images)
    try:
        array, placement = taking.prepared(body)
        answering = Postprocess(serving.postprocess)
        answer = answering.answer(outputs, placement, taking.size_of(array))
    except ValueError as error:
        raise InputError(
            f"the bundle's modules refuse a sample of the recipe: {error}",
            place=item.place,
            hint="look at `prepare` and `postprocess` in the recipe, or leave --images out",
        ) from error
    for tensor, made in taking.feed([array], [placement]).items():
        _require_equal(made, inputs[tensor], item.place)
    name = f"{_NAME}.{_SUFFIXES[kind]}"
    (folder / name).write_bytes(body)
    (folder / ANSWER).write_text(json.dumps(answer) + "\n", encoding="utf-8")
    return name


def _require_equal(array: np.ndarray, wanted: np.ndarray, place: str) -> None:
    import numpy as np

    if array.shape != wanted.shape or not np.array_equal(array, wanted.astype(array.dtype)):
        raise InputError(
            "the bundle's modules do not prepare this image as optcli does",
            place=place,
            hint="this is a bug: report it with the recipe's `prepare`, and leave --images out",
        )


def _bytes(raw: Any, place: str, settings: DataSettings) -> tuple[str, bytes] | None:
    """A sample as the bytes of an image: those of its file, or a PNG of its pixels.

    None where PNG has no form for the pixels.
    """
    from PIL import Image, ImageOps

    prepare = settings.prepare or Preparation()
    if hasattr(raw, "mode"):
        try:
            body = regular_files.read(place, _MOST_BYTES)
            with Image.open(io.BytesIO(body), formats=FORMATS) as found:
                return str(found.format), body
        except OSError:  # an item of a data set that has no file, or one of another format
            image = ImageOps.exif_transpose(raw) if prepare.orient else raw
    else:
        pixels = steps.from_array(raw, prepare.array_layout)
        image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    stream = io.BytesIO()
    try:
        image.save(stream, "PNG")
    except OSError:
        return None
    return "PNG", stream.getvalue()


def _tensors(path: Path, key: str) -> dict[str, np.ndarray]:
    """The tensors of a golden file, by name. JSON holds float32 exactly."""
    import numpy as np

    tensors: Sequence[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))[key]
    return {each["name"]: np.array(each["data"]).reshape(each["shape"]) for each in tensors}
