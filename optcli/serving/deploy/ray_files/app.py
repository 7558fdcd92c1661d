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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from batches import Batches, Item
from metrics import CONTENT_TYPE, Metrics
from oip import HEADER, Arrays, InferRequest, Protocol, Refused, body_of, encoded, seconds_of
from ray import serve
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

HERE = Path(__file__).parent
BUNDLE: dict[str, Any] = json.loads((HERE / "bundle.json").read_text())
MODEL = f"/v2/models/{BUNDLE['model']}"
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
        self.cache: Any = None
        self._sample: Any = None
        self._posted = {f"{MODEL}/infer": self._answer}
        # What the protocol says of the server and of the model, by path.
        self.pages: dict[str, Any] = json.loads((HERE / "pages.json").read_text())
        self._pages: dict[str, Callable[[], Any]] = {
            "/v2/health/live": lambda: {"live": True},
            "/v2/health/ready": lambda: {"ready": self.is_ready()},
            "/v2/models/stats": self.metrics.statistics,
            f"{MODEL}/ready": lambda: {"ready": self.is_ready()},
            f"{MODEL}/stats": self.metrics.statistics,
            "/metrics": self.metrics.text,
        }
        if BUNDLE["cache"]:
            self.cache = importlib.import_module("cache").opened(HERE, self.metrics.cached)
        if BUNDLE["images"]:
            endpoint = importlib.import_module("image_endpoint").ImageEndpoint(HERE, self)
            self._posted[f"{MODEL}/images"] = endpoint.answer
        if BUNDLE["sample_inputs"]:
            self._sample = importlib.import_module("keeping").Kept(HERE, BUNDLE["sample_inputs"])
            self._pages[f"{MODEL}/inputs"] = self._sample.file

    def __del__(self) -> None:  # Ray calls it when a replica ends
        if sample := getattr(self, "_sample", None):
            sample.close()

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
        path = path.replace(f"{MODEL}/versions/1", MODEL, 1)
        if path not in {*self.pages, *self._pages, *self._posted}:
            return Refused(404, f"there is no such page; the model is at {MODEL}/infer").response()
        method = "POST" if path in self._posted or path == "/v2/repository/index" else "GET"
        if request.method != method:
            return Refused(405, f"use {method} for this page").response()
        if path in self._posted:
            try:
                with self.metrics.request():
                    return await self._posted[path](request)
            except Refused as refused:
                return refused.response()
        content = self.pages.get(path) or await asyncio.to_thread(self._pages[path])
        if isinstance(content, bytes):
            return Response(content, media_type=CONTENT_TYPE)
        return JSONResponse(content, 503 if content == {"ready": False} else 200)

    def is_ready(self) -> bool:
        """Whether requests should come here: not while the server stops."""
        return not STOPPING.exists()

    def require_room(self) -> None:
        """Raise `Refused` where as many requests are inside as may be."""
        if self._inside >= self._config["max_in_flight"]:
            retry = str(max(1, round(self._config["deadline_ms"] / 1000)))
            sentence = f"the queue is full with {self._inside} requests"
            raise Refused(429, sentence, **{"retry-after": retry})

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Be inside. Raises `Refused` where there is no room."""
        self.require_room()
        self._inside += 1
        try:
            with self.metrics.queue_depth.track_inprogress():
                yield
        finally:
            self._inside -= 1

    def deadline(self, shorter_ms: str | None = None) -> float:
        """When a request that came now is late, in seconds since the epoch."""
        return time.time() + seconds_of(shorter_ms, self._config["deadline_ms"] / 1000)

    async def outputs(self, request: InferRequest, deadline: float) -> Arrays:
        """The outputs of a request: kept ones, or computed ones. Raises `Refused`."""
        if self.cache is None:
            return await self.computed(request, deadline)
        key = self.cache.key(*(part for pair in sorted(request.feed.items()) for part in pair))
        return await self.cache.get(key, lambda: self.computed(request, deadline))

    async def computed(self, request: InferRequest, deadline: float) -> Arrays:
        """What the model gives for a request, in parts of the largest batch. Raises `Refused`."""
        with self.admitted():
            if self._sample:
                self._sample.offer(request.feed)
            parts = request.parts(self._config["max_batch_size"])
            items = [Item(feed, rows, deadline, time.time()) for feed, rows in parts]
            try:
                async with asyncio.timeout(deadline - time.time()):
                    results = await asyncio.gather(*map(self._row, items))
            except TimeoutError as error:
                raise Refused.late() from error
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
        with self.metrics.staged("parse"):
            infer_request = self.protocol.read(body, request.headers.get(HEADER))
        outputs = await self.outputs(infer_request, deadline)
        with self.metrics.staged("post"):
            content, headers = self.protocol.write(infer_request, outputs)
            content = encoded(content, request.headers.get("accept-encoding", ""), headers)
        return Response(content, headers=headers)

    async def body(self, request: Request) -> tuple[bytes, float]:
        """The body of a request and its deadline, which begins when the body is there."""
        if self.cache is None:
            self.require_room()
        body = await body_of(request, BUNDLE["most_body_bytes"], BUNDLE["read_timeout_s"])
        return body, self.deadline(request.headers.get("x-deadline-ms"))


app = Replica.bind()
