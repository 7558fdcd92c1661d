"""The server: an ingress that speaks the Open Inference Protocol v2, and replicas of the model.

`bundle.json` says what is served, `serve_config.yaml` with how many replicas and which batches.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from batches import Batches, Item
from direct import Direct
from garbage import leave_out_what_exists
from lanes import Lanes, about
from metrics import CONTENT_TYPE, Metrics
from oip import HEADER, Protocol, Refused, body_of
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from together import Row

HERE = Path(__file__).parent
BUNDLE: dict[str, Any] = json.loads((HERE / "bundle.json").read_text())
MODEL = f"/v2/models/{BUNDLE['model']}"
# Clients may name the version, of which there is one.
MODELS = (MODEL, f"{MODEL}/versions/1")


@serve.deployment
class Model:
    """One replica of the model. Calls run in threads, so that the event loop is always free."""

    def __init__(self) -> None:
        os.environ.update(BUNDLE["runner"]["environment"])
        import model

        self._pool = ThreadPoolExecutor(BUNDLE["concurrency"])
        self._batches = Batches(model.Model(HERE / "model", BUNDLE), BUNDLE)
        self._identity = serve.get_replica_context().replica_id.unique_id
        leave_out_what_exists()

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

    async def infer_rows(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """What `infer` gives for each of several requests of one row."""
        return await asyncio.gather(*(self.infer(feed, 1, deadline) for feed, deadline in rows))

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

    def __init__(self, *models: DeploymentHandle) -> None:
        self._protocol, self._metrics = Protocol(BUNDLE), Metrics(about(BUNDLE))
        self._lanes = Lanes(BUNDLE, models, self._metrics)
        self._app_name = serve.get_replica_context().app_name
        self._stopping, self._kept = False, None
        self._images: Any = None
        answers: Any = None
        if BUNDLE["cache"]:
            import cache

            answers = cache.opened(HERE, self._metrics.hits.inc, self._metrics.misses.inc)
            for lane in self._lanes.every:
                lane.cache, lane.gives = answers and answers.beside(), self._protocol.gives
        if BUNDLE["images"]:
            from image_endpoint import ImageEndpoint

            self._images = ImageEndpoint(HERE, answers)
        if BUNDLE["sample_inputs"]:
            import keeping

            self._kept = keeping.Kept(HERE, BUNDLE["sample_inputs"])
            for lane in self._lanes.every:
                lane.kept = self._kept
        leave_out_what_exists()

    def __serve_build_asgi_app__(self) -> Direct:
        pages = {
            "/v2": {"name": "ray-serve", "version": "1", "extensions": ["binary_tensor_data"]},
            "/v2/health/live": {"live": True},
            **dict.fromkeys(MODELS, self._protocol.metadata()),
        }
        routes = [Route(path, lambda _, page=page: JSONResponse(page)) for path, page in pages.items()]
        routes += [Route(f"{each}/ready", self.ready) for each in ("/v2/health", *MODELS)]
        ways = ("infer", "images") if self._images else ("infer",)
        asked = [f"{each}/{way}" for each in MODELS for way in ways]
        routes += [Route(path, self.infer, methods=["POST"]) for path in asked]
        routes += [Route("/metrics", self.metrics), *(self._kept.routes(MODEL) if self._kept else ())]
        missing = Refused(404, f"there is no such page; the model is at {MODEL}/infer").response
        method = Refused(405, "use POST for infer and images, GET for all other pages").response
        handlers: Any = {404: lambda *_: missing(), 405: lambda *_: method()}
        return Direct(asked, self.infer, Starlette(routes=routes, exception_handlers=handlers))

    async def check_health(self) -> None:
        """Ray asks every second; here it counts the replicas that can answer, where that may be new."""
        if not self._lanes.in_doubt():
            return
        status = await asyncio.to_thread(serve.status)
        application = status.applications.get(self._app_name)
        self._lanes.seen(application.deployments if application else {})

    async def drain(self) -> None:
        """Refuse what comes from now on, and wait until all that is inside has its answer."""
        self._stopping = True
        while self._lanes.inside:
            await asyncio.sleep(0.02)
        if self._kept:
            await asyncio.to_thread(self._kept.close)

    async def ready(self, request: Request) -> Response:
        """Whether every request would find a replica."""
        return Response(status_code=200 if self._lanes.ready and not self._stopping else 503)

    async def metrics(self, request: Request) -> Response:
        """For Prometheus."""
        for lane in self._lanes.every:
            lane.metrics.waiting(lane.admission.inside, lane.admission.most)
        return Response(self._metrics.text(), media_type=CONTENT_TYPE)

    async def infer(self, request: Request) -> Response:
        """One request of the protocol."""
        cause = ""
        try:
            response = await self._answer(request)
        except Refused as refused:
            response, cause = refused.response(), refused.cause
        counted = self._metrics.of(getattr(request.state, "priority", ""))
        counted.answered(response.status_code, cause)
        return response

    async def _answer(self, request: Request) -> Response:
        if self._stopping:
            raise Refused(503, "the server is stopping", cause="replica")
        known = self._lanes.known(request.headers.get("x-priority"))
        if known and known.full:
            request.state.priority = known.name
            known.admission.require_room()
        body = await body_of(request, BUNDLE["most_body_bytes"], BUNDLE["read_timeout_s"])
        arrived, shorter_ms = time.time(), request.headers.get("x-deadline-ms")
        image = self._images and request.url.path.endswith("/images")
        asked = None if image else await self._protocol.read(body, request.headers.get(HEADER))
        lane = self._lanes.of(request.headers.get("x-priority"), asked and asked.priority)
        request.state.priority = lane.name
        lane.require_replica()
        deadline = arrived + lane.deadline_s(shorter_ms)
        if asked is None:
            answer = await self._images.answer(body, deadline, lane)
            return Response(answer, media_type="application/json")
        lane.metrics.stage("parse", time.time() - arrived)
        parts = await lane.outputs(asked, deadline)
        computed = time.time()
        content, headers = await self._protocol.write(asked, parts)
        lane.metrics.stage("post", time.time() - computed)
        return Response(content, headers=headers)


# A deployment of the model for each priority, or one for all requests.
app = Ingress.bind(*(Model.options(name=each["deployment"]).bind() for each in about(BUNDLE)))
