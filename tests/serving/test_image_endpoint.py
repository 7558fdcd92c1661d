"""The endpoint for images of a bundle, with its real modules and a model that is none."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import io
import json
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from copied_modules import RAY_FILES
from PIL import Image

from optcli.serving import prediction
from optcli.settings.postprocess import RowDecoding

IMAGES = {
    "schema": 1,
    "input": "image",
    "dtype": "float32",
    "shape": [3, 4, 4],
    "ranges": {},
    "layout": "chw",
    "formats": ["JPEG", "PNG"],
    "most_pixels": 1_000_000,
    "steps": {
        "orient": False,
        "resize": [4, 4],
        "interpolation": "bilinear",
        "resize_in": "uint8",
        "longest": None,
        "multiple_of": None,
        "crop_rounding": "even",
        "crop": None,
        "letterbox": None,
        "channel_order": "rgb",
        "scale": 1.0,
        "mean": [0.0],
        "std": [1.0],
    },
}
POSTPROCESS = {
    "schema": 1,
    "kind": "classes",
    "classes": {"output": "out", "activation": "none", "top": 1},
    "names": None,
    "size": [4, 4],
}


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """The modules of a bundle, which import each other, as a server has them."""
    names = ["oip", "images", "postprocess", "cache", "known_answers"]
    names.append("image_endpoint")
    for file in prediction.COPIED.values():
        shutil.copy(file, tmp_path)
    for folder in (tmp_path, RAY_FILES):
        monkeypatch.syspath_prepend(str(folder))
    known = {name: sys.modules.pop(name, None) for name in names}
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    for name, module in known.items():
        sys.modules.pop(name, None)
        if module is not None:
            sys.modules[name] = module


class Stages:
    """The seconds of each stage."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def stage(self, stage: str) -> SimpleNamespace:
        return SimpleNamespace(observe=lambda seconds: self.seen.append(stage))


def counted(modules: Any) -> tuple[Any, list[bool]]:
    """A cache, and what it counts: True for a hit."""
    counts: list[bool] = []
    hits, misses = (SimpleNamespace(inc=lambda hit=hit: counts.append(hit)) for hit in (True, False))
    return modules.cache.Cache("m", modules.cache.Memory(60.0, 10_000), hits, misses), counts


class Around:
    """A replica with its endpoint, whose model gives the mean of the image, and what it was asked."""

    def __init__(
        self,
        modules: Any,
        folder: Path,
        *,
        limit: int = 10,
        cache: Any = None,
        values: dict[str, Any] | None = None,
        **answers: Any,
    ):
        (folder / "images.json").write_text(json.dumps({**IMAGES, "values": values or {}}))
        (folder / "postprocess.json").write_text(json.dumps({**POSTPROCESS, **answers}))
        self.limit, self.metrics = limit, Stages()
        self.calls, self.cache = 0, cache
        self.outputs: Any = None
        self.refused = modules.oip.Refused
        self.endpoint = modules.image_endpoint.ImageEndpoint(folder, self)

    async def body(self, request: Any) -> tuple[bytes, float]:
        return request

    def require_room(self) -> None:
        if not self.limit:
            raise self.refused(429, "the queue is full")

    async def computed(self, asked: Any, deadline: float) -> dict[str, np.ndarray]:
        self.calls += 1
        assert asked.rows == 1
        self.feed = asked.feed
        (row,) = asked.feed["image"]
        return {"out": row.mean(axis=(1, 2))[None] if self.outputs is None else self.outputs}

    async def ask(self, body: bytes, seconds: float = 60.0) -> Any:
        response = await self.endpoint.answer((body, time.time() + seconds))
        return json.loads(response.body)


def picture(red: int) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (9, 7), (red, 20, 30)).save(stream, "PNG")
    return stream.getvalue()


def test_an_image_is_prepared_computed_and_answered(modules: Any, tmp_path: Path) -> None:
    one = Around(modules, tmp_path)
    assert asyncio.run(one.ask(picture(200))) == {"classes": [{"label": 0, "score": 200.0}]}
    assert one.metrics.seen == ["parse", "post"]


def test_the_model_gets_the_size_of_the_original_too(modules: Any, tmp_path: Path) -> None:
    value = {"dtype": "int64", "shape": [2], "whole": False, "value": "original_size"}
    one = Around(modules, tmp_path, values={"size": value})
    asyncio.run(one.ask(picture(200)))
    assert one.feed["size"].tolist() == [[7, 9]]


@pytest.mark.parametrize(
    ("body", "status", "sentence"),
    [
        (b"", 415, "found no bytes"),
        (b"GIF89a", 415, "not a JPEG or PNG"),
        (picture(1)[:-25], 422, "cut short"),
    ],
)
def test_what_is_no_image_costs_no_call(
    modules: Any, tmp_path: Path, body: bytes, status: int, sentence: str
) -> None:
    one = Around(modules, tmp_path)
    with pytest.raises(modules.oip.Refused, match=sentence) as caught:
        asyncio.run(one.ask(body))
    assert caught.value.status == status
    assert one.calls == 0


def test_past_its_deadline_it_is_not_even_decoded(modules: Any, tmp_path: Path) -> None:
    one = Around(modules, tmp_path)
    with pytest.raises(modules.oip.Refused) as caught:
        asyncio.run(one.ask(picture(1), seconds=-0.001))
    assert caught.value.status == 504
    assert one.calls == 0


def test_a_full_queue_decodes_nothing(modules: Any, tmp_path: Path) -> None:
    one = Around(modules, tmp_path, limit=0)
    with pytest.raises(modules.oip.Refused, match="queue is full") as caught:
        asyncio.run(one.ask(picture(1)))
    assert caught.value.status == 429
    assert one.metrics.seen == []


@pytest.mark.parametrize("count", [0, 1, 2])
def test_rows_of_one_image_are_answered_whatever_their_number(
    modules: Any, tmp_path: Path, count: int
) -> None:
    """With a dimension for the batch, or without one."""
    how = RowDecoding().model_dump(mode="json")
    one = Around(modules, tmp_path, kind="rows", rows=how, names=["a", "b"])
    rows = np.array([[0, 0, 4, 4, 0.9, 1], [0, 0, 2, 2, 0.5, 0]], np.float32)[:count]
    for outputs in (rows, rows[None]):
        one.outputs = outputs
        answer = asyncio.run(one.ask(picture(1)))
        assert [each["name"] for each in answer["boxes"]] == ["b", "a"][:count]
    one.outputs = np.array([[0, 0, 4, 4, 0.9, 2]], np.float32)
    with pytest.raises(modules.oip.Refused, match="class number 2, and there are 2 classes"):
        asyncio.run(one.ask(picture(1)))


def test_outputs_that_cannot_be_read_are_an_error_of_the_server(modules: Any, tmp_path: Path) -> None:
    one = Around(modules, tmp_path)
    one.outputs = np.full((1, 3), np.nan)
    with pytest.raises(modules.oip.Refused, match=r"outputs cannot be read: .*NaN") as caught:
        asyncio.run(one.ask(picture(1)))
    assert caught.value.status == 500


def test_the_loop_goes_on_while_an_image_is_decoded(
    modules: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Around(modules, tmp_path)
    going, prepared = threading.Event(), one.endpoint._images.prepared

    def slow(body: bytes) -> Any:
        assert going.wait(30)
        return prepared(body)

    monkeypatch.setattr(one.endpoint._images, "prepared", slow)

    async def body() -> None:
        asked = asyncio.create_task(one.ask(picture(1)))
        await asyncio.sleep(0)
        going.set()  # nobody would get here if decoding held the loop
        assert (await asked)["classes"]

    asyncio.run(body())


def test_answers_are_kept_by_bytes_and_by_what_the_files_say(modules: Any, tmp_path: Path) -> None:
    kept, counts = counted(modules)

    async def body() -> None:
        one = Around(modules, tmp_path, cache=kept)
        first = await one.ask(picture(70))
        assert await one.ask(picture(70)) == first
        assert await one.ask(picture(80)) != first
        assert (one.calls, counts) == (2, [False, True, False])
        named = Around(modules, tmp_path, cache=kept, names=["red", "green", "blue"])
        assert "name" in (await named.ask(picture(70)))["classes"][0]
        assert named.calls == 1

    asyncio.run(body())


def test_an_answer_that_is_known_ahead_is_a_hit_and_costs_no_call(modules: Any, tmp_path: Path) -> None:
    kept, counts = counted(modules)
    Around(modules, tmp_path)  # writes the settings
    settings = b"".join((tmp_path / name).read_bytes() for name in ("images.json", "postprocess.json"))
    answer = {"classes": [{"label": 3, "score": 0.5}]}
    modules.known_answers.write(
        tmp_path / modules.known_answers.FILE,
        "m",
        settings,
        [(hashlib.sha256(picture(70)).digest(), json.dumps(answer).encode())],
    )

    async def body() -> None:
        one = Around(modules, tmp_path, cache=kept)
        assert await one.ask(picture(70)) == answer
        assert (one.calls, counts) == (0, [True])
        assert await one.ask(picture(80)) != answer
        assert (one.calls, counts) == (1, [True, False])
        edited = Around(modules, tmp_path, cache=kept, names=["red", "green", "blue"])
        assert (await edited.ask(picture(70)))["classes"][0]["label"] == 0
        assert edited.calls == 1, "the settings are others than those of the known answers"

    asyncio.run(body())
