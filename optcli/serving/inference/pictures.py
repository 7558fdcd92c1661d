"""The first images of a run with what the model answered, as JPEGs in a folder of the answers."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from optcli import workers
from optcli.accuracy.drawing import DrawnBox, jpeg
from optcli.accuracy.parts import CONFIDENT
from optcli.data.images import Images, pixels_of
from optcli.errors import StoreError, raised_as
from optcli.files import folders
from optcli.serving.inference.listing import Listing, Stored
from optcli.serving.inference.output import Output
from optcli.serving.prediction import storage
from optcli.workers import Channel

FOLDER = "pictures"
_SIDE, _QUALITY = 640, 80
_CLASSES = 3
_OURS = re.compile(r"\d{4,}-.*\.jpg")


@dataclass(frozen=True)
class Answered:
    """An image and its answer, as a row of the answers has it."""

    image: Stored
    answer: dict[str, Any]


@dataclass(frozen=True)
class DrawRequest:
    """What is drawn into the folder `out`; `images` is what `data.images` is told."""

    input_uri: str
    images: dict[str, Any]
    answered: tuple[Answered, ...]
    out: Path


def write(count: int, listed: Listing, output: Output, source: str, images: dict[str, Any]) -> int:
    """Draw the first `count` answered images of a finished run; gives how many could be drawn.

    Pictures of an earlier run are removed. Raises `StoreError` where nothing can be written.
    """
    place = storage.place_of(posixpath.join(output.uri, FOLDER))
    hint = "look at the permissions and the room there, or leave out --pictures"
    with (
        raised_as(StoreError, "pictures cannot be written", of=OSError, place=place.path, hint=hint),
        folders.temporary("pictures") as folder,
    ):
        answered = tuple(islice(_answered(listed, output), count))
        request = DrawRequest(source, images, answered, Path(folder))
        drawn = workers.run("optcli.serving.inference.pictures:draw", request, int)
        place.make()
        for name in filter(_OURS.fullmatch, place.names()):
            storage.asked(partial(place.fs.rm_file, posixpath.join(place.path, name)))
        for path in sorted(Path(folder).iterdir()):
            storage.write(place, path.name, path.read_bytes())
    return drawn


def _answered(listed: Listing, output: Output) -> Iterator[Answered]:
    for shard in listed.shards:
        by_id = {image.id: image for image in shard.images}
        for row in output.rows(shard.name):
            yield Answered(by_id[row["id"]], row)


def draw(request: DrawRequest, channel: Channel) -> int:
    """Write the JPEGs; an image that cannot be read any more has none."""
    from PIL import Image

    prepare, place = Images(request.images), storage.place_of(request.input_uri)
    drawn = 0
    for number, each in enumerate(request.answered, 1):
        stored = each.image
        try:
            body = storage.read(place, stored.path, stored.offset, stored.size)
            pixels = pixels_of(prepare.decoded(body), "rgb")
        except (OSError, ValueError):
            continue
        flat = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
        classes = each.answer.get("classes", ())[:_CLASSES]
        boxes = [box for box in each.answer.get("boxes", ()) if box["score"] >= CONFIDENT]
        content = jpeg(
            Image.fromarray(flat).convert("RGB"),
            [_marked(box) for box in boxes],
            _SIDE,
            _QUALITY,
            [*map(_named, classes)],
        )
        name = posixpath.splitext(posixpath.basename(stored.id))[0]
        name = re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII)[-60:]
        (request.out / f"{number:04}-{name}.jpg").write_bytes(content)
        drawn += 1
    return drawn


def _marked(box: Mapping[str, Any]) -> DrawnBox:
    beside = {name: box[name] for name in ("mask", "keypoints", "corners") if name in box}
    return DrawnBox(box["box"], _named(box), **beside)


def _named(one: Mapping[str, Any]) -> str:
    return f"{one.get('name') or 'class ' + str(one['label'])} {one['score']:.2f}"
