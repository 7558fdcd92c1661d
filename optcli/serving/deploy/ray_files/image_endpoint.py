"""`POST /v2/models/NAME/images`: one JPEG or PNG as the body, classes or boxes as JSON."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import images
import numpy as np
import postprocess
from oip import Refused

Arrays: TypeAlias = Mapping[str, np.ndarray]
T = TypeVar("T")
# A decoded photograph takes hundreds of megabytes at most: so many at once, whatever comes.
_THREADS = min(4, len(os.sched_getaffinity(0)))


class ImageEndpoint:
    """Prepares an image, has it computed, and makes an answer of the outputs; all but that in threads.

    `compute` gives the outputs for one row of the input before a deadline (seconds since the epoch).
    `observe` counts the seconds of a stage.
    """

    def __init__(
        self,
        folder: Path,
        compute: Callable[[Arrays, float], Awaitable[Arrays]],
        admitted: Callable[[], AbstractContextManager[None]],
        observe: Callable[[str, float], None],
    ) -> None:
        self._images = images.Images.from_file(folder / images.FILE)
        self._postprocess = postprocess.Postprocess.from_file(folder / postprocess.FILE)
        self._compute, self._admitted, self._observe = compute, admitted, observe
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="images")

    async def answer(self, body: bytes | bytearray, deadline: float) -> bytes:
        """The answer to one image, as JSON.

        Raises `Refused` with 415 for a body that is no image, and 422 for one that the model cannot take.
        """
        with self._admitted():
            try:
                array, placement = await self._in_thread("parse", deadline, self._images.prepared, body)
            except images.NoImageError as error:
                raise Refused(415, str(error)) from error
            except ValueError as error:
                raise Refused(422, str(error)) from error
            size = self._images.size_of(array)
            outputs = await self._compute({self._images.input: array[None]}, deadline)
            rows = {name: each[0] if each.ndim else each for name, each in outputs.items()}
            answering = self._postprocess.answer
            try:
                answer = await self._in_thread("post", deadline, answering, rows, placement, size)
            except ValueError as error:
                raise Refused(500, f"the outputs cannot be read: {error}") from error
        return json.dumps(answer).encode()

    async def _in_thread(
        self, stage: str, deadline: float, call: Callable[..., T], *arguments: Any
    ) -> T:
        """What a call gives, unless the deadline passes before it begins."""
        came = time.time()

        def begin() -> T:
            if time.time() >= deadline:
                raise Refused.late()
            return call(*arguments)

        result = await asyncio.get_running_loop().run_in_executor(self._threads, begin)
        self._observe(stage, time.time() - came)
        return result
