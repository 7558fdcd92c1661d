"""`POST /v2/models/NAME/images`: one JPEG or PNG as the body, classes or boxes as JSON."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import images
import numpy as np
import postprocess
from oip import Asked, Refused

Arrays: TypeAlias = Mapping[str, np.ndarray]
T = TypeVar("T")
# A decoded photograph takes hundreds of megabytes at most: so many at once, whatever comes.
_THREADS = min(4, len(os.sched_getaffinity(0)))


class ImageEndpoint:
    """Prepares an image, has it computed, and makes an answer of the outputs; all but that in threads.

    The lane of a request admits and computes it, and counts the seconds of stages. Where it has a
    cache, that keeps answers by the bytes of the image.
    """

    def __init__(self, folder: Path) -> None:
        self._images = images.Images.from_file(folder / images.FILE)
        self._postprocess = postprocess.Postprocess.from_file(folder / postprocess.FILE)
        # Both files may have been edited: answers of others are none of ours.
        files = (folder / images.FILE, folder / postprocess.FILE)
        self._settings = b"".join(file.read_bytes() for file in files)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="images")

    async def answer(self, body: bytes | bytearray, deadline: float, lane: Any) -> bytes:
        """The answer to one image, as JSON, before a deadline (seconds since the epoch).

        Raises `Refused` with 415 for a body that is no image, 422 for one that the model cannot take.
        """
        if lane.cache is None:
            return await self._admitted(body, deadline, lane)

        async def compute() -> Arrays:
            return {"json": np.frombuffer(await self._admitted(body, deadline, lane), np.uint8)}

        key = await lane.cache.key_of(["image", self._settings, memoryview(body)])
        return (await lane.cache.get(key, compute, deadline - time.time()))["json"].tobytes()

    async def _admitted(self, body: bytes | bytearray, deadline: float, lane: Any) -> bytes:
        with lane.admission.admitted():  # decoding costs as well
            return await self._computed(body, deadline, lane)

    async def _computed(self, body: bytes | bytearray, deadline: float, lane: Any) -> bytes:
        prepare = self._images.prepared
        try:
            array, placement = await self._in_thread(lane, "parse", deadline, prepare, body)
        except images.NoImageError as error:
            raise Refused(415, str(error)) from error
        except ValueError as error:
            raise Refused(422, str(error)) from error
        asked = Asked({self._images.input: array[None]}, 1, {})
        (outputs,) = await lane.computed(asked, deadline)
        rows = {name: each[0] if each.ndim else each for name, each in outputs.items()}
        answer, size = self._postprocess.answer, self._images.size_of(array)
        try:
            found = await self._in_thread(lane, "post", deadline, answer, rows, placement, size)
        except ValueError as error:
            raise Refused(500, f"the outputs cannot be read: {error}") from error
        return json.dumps(found).encode()

    async def _in_thread(
        self, lane: Any, stage: str, deadline: float, call: Callable[..., T], *arguments: Any
    ) -> T:
        """What a call gives, unless the deadline passes before it begins."""
        came = time.time()

        def begin() -> T:
            if time.time() >= deadline:
                raise Refused.late()
            return call(*arguments)

        result = await asyncio.get_running_loop().run_in_executor(self._threads, begin)
        lane.metrics.stage(stage, time.time() - came)
        return result
