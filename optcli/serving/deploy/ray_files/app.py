"""The server: an ingress that speaks the Open Inference Protocol v2, and replicas of the model.

`bundle.json` says what is served, `serve_config.yaml` with how many replicas and which batches.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from admission import Admission
from batches import Batches, Item
from metrics import CONTENT_TYPE, Metrics
from oip import HEADER, Asked, Protocol, Refused, body_of
from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

HERE = Path(__file__).parent
BUNDLE: dict[str, Any] = json.loads((HERE / "bundle.json").read_text())
MODEL = f"/v2/models/{BUNDLE['model']}"


@serve.deployment
class Model:
    """One replica of the model. Calls run in threads, so that the event loop is always free."""

    def __init__(self) -> None:
        threads = str(BUNDLE["threads"])
        os.environ.update(OMP_NUM_THREADS=threads, MKL_NUM_THREADS=threads)
        import model

        self._pool = ThreadPoolExecutor(BUNDLE["concurrency"])
        self._batches = Batches(model.Model(HERE / "model", BUNDLE), BUNDLE)
        self._identity = serve.get_replica_context().replica_id.unique_id

    def reconfigure(self, config: dict[str, Any]) -> None:
        """Take `user_config` of serve_config.yaml, which may change while the server runs."""
        self._batches.configure(config)
        self._together.set_max_batch_size(config["max_batch_size"])

    async def infer(self, feed: dict[str, np.ndarray], rows: int, deadline: float) -> dict[str, Any]:
        """Outputs and times; `outputs` is None where it was not computed before the deadline.

        Single rows are computed together; a request of several rows is a batch of its own.
        """
        item = Item(feed, rows, deadline, arrived=time.time())
        self._together.set_batch_wait_timeout_s(self._batches.arrives(item.arrived))
        try:
            if rows == 1 and BUNDLE["batched"]:
                return await self._together(item)
            return (await self._computed([item]))[0]
        except asyncio.CancelledError:
            item.cancelled = True
            raise
        finally:
            self._batches.leaves()

    @serve.batch(max_concurrent_batches=BUNDLE["sealed_batches"])
    async def _together(self, items: list[Item]) -> list[dict[str, Any]]:
        return await self._computed(items)

    async def _computed(self, items: list[Item]) -> list[dict[str, Any]]:
        call, loop = self._batches.call, asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, call, items, time.time(), self._identity)


@serve.deployment
@serve.ingress()
class Ingress:
    """All requests come here: they are read, counted, admitted, and handed to a replica."""

    def __init__(self, model: DeploymentHandle) -> None:
        self._infer, self._protocol = model.infer, Protocol(BUNDLE)
        self._metrics = Metrics(BUNDLE["largest_batch"])
        self._admission = Admission(BUNDLE["most_in_flight"], BUNDLE["deadline_ms"] / 1000)
        self._app_name, self._replicas, self._stopping = serve.get_replica_context().app_name, 0, False
        self._cache, self._images, self._kept = None, None, None
        if BUNDLE["cache"]:
            import cache

            self._cache = cache.opened(HERE, self._metrics.hits.inc, self._metrics.misses.inc)
        if BUNDLE["images"]:
            from image_endpoint import ImageEndpoint

            self._images = ImageEndpoint(
                HERE, self._computed, self._admission, self._metrics, self._cache
            )
        if BUNDLE["sample_inputs"]:
            import keeping

            self._kept = keeping.Kept(HERE, BUNDLE["sample_inputs"])

    def __serve_build_asgi_app__(self) -> Starlette:
        pages = {
            "/v2": {"name": "ray-serve", "version": "1", "extensions": ["binary_tensor_data"]},
            "/v2/health/live": {"live": True},
            MODEL: self._protocol.metadata(),
        }
        routes = [Route(path, lambda _, page=page: JSONResponse(page)) for path, page in pages.items()]
        routes += [Route(path, self.ready) for path in ("/v2/health/ready", f"{MODEL}/ready")]
        for way in ("infer", "images") if self._images else ("infer",):
            routes.append(Route(f"{MODEL}/{way}", self.infer, methods=["POST"]))
        routes += [Route("/metrics", self.metrics), *(self._kept.routes(MODEL) if self._kept else ())]
        missing = Refused(404, f"there is no such page; the model is at {MODEL}/infer").response
        return Starlette(routes=routes, exception_handlers={404: lambda *_: missing()})

    async def check_health(self) -> None:
        """Ray asks every second; here it counts the replicas that can answer."""
        status = await asyncio.to_thread(serve.status)
        application = status.applications.get(self._app_name)
        model = application.deployments.get("Model") if application else None
        self._replicas = model.replica_states.get("RUNNING", 0) if model else 0

    async def drain(self) -> None:
        """Refuse what comes from now on, and wait until all that is inside has its answer."""
        self._stopping = True
        while self._admission.inside:
            await asyncio.sleep(0.02)
        if self._kept:
            await asyncio.to_thread(self._kept.close)

    async def ready(self, request: Request) -> Response:
        """Whether a request would find a replica."""
        return Response(status_code=200 if self._replicas and not self._stopping else 503)

    async def metrics(self, request: Request) -> Response:
        """For Prometheus."""
        self._metrics.depth.set(self._admission.inside)
        return Response(self._metrics.text(), media_type=CONTENT_TYPE)

    async def infer(self, request: Request) -> Response:
        """One request of the protocol."""
        try:
            response = await self._answer(request)
        except Refused as refused:
            if refused.cause:
                self._metrics.dropped.labels(refused.cause).inc()
            response = refused.response()
        self._metrics.requests.labels(str(response.status_code)).inc()
        return response

    async def _answer(self, request: Request) -> Response:
        if self._stopping or not self._replicas:
            raise Refused(503, "the server has no replica that is ready", cause="replica")
        body = await body_of(request, BUNDLE["most_body_bytes"], BUNDLE["read_timeout_s"])
        arrived = time.time()
        deadline = arrived + self._protocol.deadline_s(request.headers.get("x-deadline-ms"))
        if self._images and request.url.path.endswith("/images"):
            return Response(await self._images.answer(body, deadline), media_type="application/json")
        asked = await self._protocol.read(body, request.headers.get(HEADER))
        self._metrics.stage.labels("parse").observe(time.time() - arrived)

        async def compute() -> list[dict[str, np.ndarray]]:
            with self._admission.admitted():
                return await self._computed(asked, deadline)

        parts = await (self._cache.parts(asked.feed, compute, deadline) if self._cache else compute())
        computed = time.time()
        content, headers = self._protocol.write(asked, parts)
        self._metrics.stage.labels("post").observe(time.time() - computed)
        return Response(content, headers=headers)

    async def _computed(self, asked: Asked, deadline: float) -> list[dict[str, np.ndarray]]:
        """What the replicas give for the request, in parts of the largest batch at most."""
        if self._kept:
            self._kept.offer(asked.feed)
        sent, parts = time.time(), asked.parts(BUNDLE["largest_batch"])
        responses = [self._infer.remote(feed, rows, deadline) for feed, rows in parts]
        try:
            async with asyncio.timeout(deadline - sent):
                results = [await response for response in responses]
        except (asyncio.CancelledError, TimeoutError, RayError, RayServeException) as error:
            for response in responses:
                response.cancel()
            if isinstance(error, RayTaskError):
                raise Refused(500, f"the model failed: {error.cause}".partition("\n")[0]) from error
            if isinstance(error, TimeoutError):
                raise Refused.late() from error
            if isinstance(error, asyncio.CancelledError):
                raise
            raise Refused(503, "the replica that had the request is gone", cause="replica") from error
        self._metrics.observe(results, sent)
        if any(result["outputs"] is None for result in results):
            raise Refused.late()
        return [result["outputs"] for result in results]


app = Ingress.bind(Model.bind())
