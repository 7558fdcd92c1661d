"""`POST /v2/models/NAME/images`: one JPEG or PNG as the body, classes or boxes as JSON."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import images
import numpy as np
import postprocess
from oip import Arrays, InferRequest, Refused
from starlette.requests import Request
from starlette.responses import Response

_KNOWN = "known_answers.sqlite"
# A decoded photograph takes hundreds of megabytes at most: so many at once, whatever comes.
_THREADS = min(4, len(os.sched_getaffinity(0)))


class ImageEndpoint:
    """Prepares an image, has it computed, and makes an answer of the outputs; all but that in threads.

    `server` is the replica of app.py, which admits and computes. Its cache keeps answers by the digest
    of the image's bytes. Answers that are known ahead, in a file beside this one, are hits.
    """

    def __init__(self, folder: Path, server: Any) -> None:
        self._server = server
        self._images = images.Images.from_file(folder / images.FILE)
        self._postprocess = postprocess.Postprocess.from_file(folder / postprocess.FILE)
        # Both files may have been edited: answers of others are none of ours.
        files = (folder / images.FILE, folder / postprocess.FILE)
        self._settings, self._known = b"".join(file.read_bytes() for file in files), None
        if server.cache is not None and (folder / _KNOWN).exists():
            import known_answers

            self._known = known_answers.KnownAnswers(
                folder / _KNOWN, server.cache.model, self._settings
            )
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="images")

    async def answer(self, request: Request) -> Response:
        """The answer to one image, as JSON.

        Raises `Refused` with 415 for a body that is no image, 422 for one that the model cannot take.
        """
        body, deadline = await self._server.body(request)
        answer = await self._answer(body, deadline)
        return Response(answer, media_type="application/json")

    async def _answer(self, body: bytes, deadline: float) -> bytes:
        cache = self._server.cache
        if cache is None:
            return await self._computed(body, deadline)
        digest = hashlib.sha256(body).digest()
        known: bytes | None = self._known and self._known.answer(digest)
        if known is not None:
            cache.hits.inc()
            return known

        async def compute() -> Arrays:
            return {"json": np.frombuffer(await self._computed(body, deadline), np.uint8)}

        key = cache.key("image", self._settings, digest)
        given = await cache.get(key, compute)
        return bytes(given["json"].tobytes())

    async def _computed(self, body: bytes, deadline: float) -> bytes:
        self._server.require_room()  # decoding costs as well
        prepare = self._images.prepared
        try:
            array, placement = await self._in_thread("parse", deadline, prepare, body)
        except images.NoImageError as error:
            raise Refused(415, str(error)) from error
        except ValueError as error:
            raise Refused(422, str(error)) from error
        request = InferRequest(self._images.feed([array], [placement]), 1, {})
        outputs = await self._server.computed(request, deadline)
        answer, size = self._postprocess.answer, self._images.size_of(array)
        try:
            result = await self._in_thread("post", deadline, answer, outputs, placement, size)
        except ValueError as error:
            raise Refused(500, f"the outputs cannot be read: {error}") from error
        return json.dumps(result).encode()

    async def _in_thread(self, stage: str, deadline: float, call: Any, *arguments: Any) -> Any:
        """What a call gives, unless the deadline passes before it begins."""
        came = time.time()

        def begin() -> Any:
            if time.time() >= deadline:
                raise Refused.late()
            return call(*arguments)

        result = await asyncio.get_running_loop().run_in_executor(self._threads, begin)
        self._server.metrics.stage(stage=stage).observe(time.time() - came)
        return result


def extend(server: Any, folder: Path) -> None:
    """Let the replica of app.py answer images."""
    server.posted[f"{server.protocol.path}/images"] = ImageEndpoint(folder, server).answer
