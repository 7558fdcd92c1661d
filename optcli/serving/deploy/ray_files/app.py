"""The server: replicas of one model, which take requests of the Open Inference Protocol v2.

Ray's proxy hands each request to the replica that has the fewest. `bundle.json` says what is served,
`user_config` of `serve_config.yaml` what may change meanwhile: batch, wait, queue and deadline.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from batches import Batches, Item
from metrics import CONTENT_TYPE, Metrics
from oip import HEADER, Arrays, InferRequest, Protocol, Refused, body_of
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

HERE = Path(__file__).parent
BUNDLE: dict[str, Any] = json.loads((HERE / "bundle.json").read_text())
# While this file is there, the server says that it is not ready, and still answers.
STOPPING = Path(os.environ.get("STOPPING_FILE", HERE / "stopping"))
Base: Any = importlib.import_module("oip_grpc").Calls if BUNDLE["grpc"] else object


@serve.deployment(name="Model")
class Replica(Base):  # type: ignore[misc]
    """One replica: it reads requests, gathers single rows into batches, and computes in threads."""

    def __init__(self) -> None:
        os.environ.update(BUNDLE["runner"]["environment"])
        import model

        self.protocol = Protocol(BUNDLE)
        self.metrics = Metrics(BUNDLE, serve.get_replica_context().app_name)
        self._pool = ThreadPoolExecutor(BUNDLE["concurrency"])
        self._batches = Batches(model.Model(HERE / "model", BUNDLE), BUNDLE, self.metrics)
        self._inside, self._config = 0, dict[str, Any]()
        # What answers a path: with the body of a request, or without.
        model_path = self.protocol.path
        self.posted = {f"{model_path}/infer": self._answer}
        self.pages: dict[str, Callable[[], Any]] = {
            "/v2/health/live": lambda: {"live": True},
            "/v2/health/ready": lambda: {"ready": self.is_ready()},
            f"{model_path}/ready": lambda: {"ready": self.is_ready()},
            "/metrics": self.metrics.text,
        }
        for path, content in json.loads((HERE / "pages.json").read_text()).items():
            self.pages[path] = partial(copy, content)
        # Extras add paths, and put themselves between these.
        self.outputs: Callable[[InferRequest, float], Awaitable[Arrays]] = self.computed
        self.cache: Any = None
        for name in BUNDLE["extras"]:
            importlib.import_module(name).extend(self, HERE)

    def reconfigure(self, config: dict[str, Any]) -> None:
        """Take `user_config` of serve_config.yaml."""
        self._config = config
        self.metrics.queue_bound.set(config["max_in_flight"])
        self._batches.warm_up(config["max_batch_size"])
        self._together.set_max_batch_size(config["max_batch_size"])
        self._together.set_batch_wait_timeout_s(config["batch_wait_timeout_s"])

    async def __call__(self, request: Request) -> Response:
        """One request over HTTP."""
        path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
        # Clients may name the version, of which there is one.
        path = path.replace(f"{self.protocol.path}/versions/1", self.protocol.path, 1)
        try:
            if path in self.posted:
                with self.metrics.request():
                    return await self.posted[path](request)
            if path not in self.pages:
                raise Refused(404, f"there is no such page; the model is at {self.protocol.path}/infer")
        except Refused as refused:
            return refused.response()
        content = await asyncio.to_thread(self.pages[path])
        if isinstance(content, bytes):
            return Response(content, media_type=CONTENT_TYPE)
        return JSONResponse(content, 503 if content == {"ready": False} else 200)

    def is_ready(self) -> bool:
        """Whether requests should come here: not while the server stops."""
        return not STOPPING.exists()

    def require_room(self) -> None:
        """Raise `Refused` where as many requests are inside as may be."""
        if self._inside >= self._config["max_in_flight"]:
            raise Refused(429, f"the queue is full with {self._inside} requests")

    def deadline(self) -> float:
        """When a request that came now is late, in seconds since the epoch."""
        return time.time() + self._config["deadline_ms"] / 1000

    async def computed(self, request: InferRequest, deadline: float) -> Arrays:
        """What the model gives for a request, in parts of the largest batch. Raises `Refused`."""
        self.require_room()
        parts = request.parts(self._config["max_batch_size"])
        items = [Item(feed, rows, deadline, time.time()) for feed, rows in parts]
        self._inside += 1
        try:
            with self.metrics.queue_depth.track_inprogress():
                async with asyncio.timeout(deadline - time.time()):
                    results = await asyncio.gather(*map(self._row, items))
        except TimeoutError as error:
            raise Refused.late() from error
        finally:
            self._inside -= 1
        if len(results) == 1:
            return results[0]
        return {name: np.concatenate([each[name] for each in results]) for name in results[0]}

    async def _row(self, item: Item) -> Arrays:
        """Single rows are computed together; several rows are a batch of their own."""
        try:
            together = item.rows == 1 and BUNDLE["batched"]
            result = await self._together(item) if together else (await self._computed([item]))[0]
        finally:
            item.cancelled = True  # nobody waits for it any more
        if isinstance(result, Refused):
            raise result
        return result

    @serve.batch(max_concurrent_batches=BUNDLE["sealed_batches"])
    async def _together(self, items: list[Item]) -> list[Any]:
        return await self._computed(items)

    async def _computed(self, items: Sequence[Item]) -> list[Any]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._batches.call, items, time.time())

    async def _answer(self, request: Request) -> Response:
        body, deadline = await self.body(request)
        with self.metrics.stage(stage="parse").time():
            infer_request = self.protocol.read(body, request.headers.get(HEADER))
        outputs = await self.outputs(infer_request, deadline)
        with self.metrics.stage(stage="post").time():
            content, headers = self.protocol.write(infer_request, outputs)
        return Response(content, headers=headers)

    async def body(self, request: Request) -> tuple[bytes, float]:
        """The body of a request and its deadline, which begins when the body is there."""
        if self.cache is None:
            self.require_room()
        body = await body_of(request, BUNDLE["most_body_bytes"])
        return body, self.deadline()


app = Replica.bind()
