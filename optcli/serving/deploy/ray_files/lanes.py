"""The ways to the model: each has replicas, a bound of what it admits and a deadline of its own.

There is one for all requests, or one for each priority of `bundle.json`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from admission import Admission, Bound
from metrics import Metrics
from oip import Asked, Refused, seconds_of
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from together import Together

# Ray is asked at least every so many looks.
_ASKED_EVERY = 5


def about(bundle: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What `bundle.json` says of each lane, the most urgent first."""
    common = {name: bundle[name] for name in ("concurrency", "slo_ms")}
    return [{**common, **each} for each in bundle["priorities"]] or [
        {**bundle, "name": "", "deployment": "Model"}
    ]


class Lane:
    """Requests of one priority, or all of them, and the deployment that answers them.

    `cache` keeps their answers where it is set; `gives` says of kept outputs whether the model can have
    given them for so many rows. `kept` has the statistics of inputs that are computed: one sample over
    all lanes. `replicas` are those that could answer when Ray was last asked. `heard` says whether all
    calls since the last look had an answer; None: there was no call.
    """

    def __init__(self, about: Mapping[str, Any], model: DeploymentHandle, metrics: Metrics) -> None:
        self.name: str = about["name"]
        self.deployment: str = about["deployment"]
        self.admission = Admission(_bound(about), about["deadline_ms"] / 1000)
        self.metrics = metrics.of(self.name)
        self.replicas = 0
        self.heard: bool | None = None
        self.cache: Any = None
        self.gives: Any = None
        self.kept: Any = None
        self._infer, self._largest_batch = model.infer, about["largest_batch"]
        self._computed_at_once = about["concurrency"] * self._largest_batch
        self._planned_replicas: int = about["instances"]
        self._together = Together(model.infer_rows.remote, self._largest_batch, self.may_be_away)
        self._shares: bool = about["shared_calls"] and self._largest_batch > 1
        self._deadline_s = about["deadline_ms"] / 1000

    def may_be_away(self) -> int:
        """Rows that replicas should have at once: what they compute, and as much to go on with."""
        return 2 * self._computed_at_once * (self.replicas or self._planned_replicas)

    def deadline_s(self, shorter_ms: str | None) -> float:
        """Seconds that a request has; the header x-deadline-ms may ask for fewer. Raises `Refused`."""
        return seconds_of(shorter_ms, self._deadline_s)

    def require_replica(self) -> None:
        """Raise `Refused` where no replica could answer."""
        if not self.replicas:
            raise Refused(503, "the server has no replica that is ready", cause="replica")

    @property
    def full(self) -> bool:
        """Whether a request would be refused whatever it holds. Kept answers need no room."""
        return not self.cache and self.admission.full

    async def outputs(self, asked: Asked, deadline: float) -> list[dict[str, np.ndarray]]:
        """The outputs of a request in parts: kept ones, or computed ones where it is admitted."""

        async def compute() -> list[dict[str, np.ndarray]]:
            with self.admission.admitted():
                return await self.computed(asked, deadline)

        if not self.cache:
            return await compute()
        fits = partial(self.gives, asked.rows)
        parts: list[dict[str, np.ndarray]] = await self.cache.parts(asked.feed, compute, deadline, fits)
        return parts

    async def computed(self, asked: Asked, deadline: float) -> list[dict[str, np.ndarray]]:
        """What the replicas give for the request, in parts of the largest batch at most."""
        if self.kept:
            self.kept.offer(asked.feed)
        sent, parts = time.time(), asked.parts(self._largest_batch)
        responses: list[Any] = []
        try:
            async with asyncio.timeout(deadline - sent):
                if asked.rows == 1 and self._shares:
                    results = [await self._together.result((asked.feed, deadline))]
                else:
                    responses += [self._infer.remote(feed, rows, deadline) for feed, rows in parts]
                    results = [await response for response in responses]
        except (asyncio.CancelledError, TimeoutError, RayError, RayServeException) as error:
            for response in responses:
                response.cancel()
            if isinstance(error, RayTaskError):
                raise Refused(500, f"the model failed: {error.cause}".partition("\n")[0]) from error
            if isinstance(error, asyncio.CancelledError):
                raise
            self.heard = False
            if isinstance(error, TimeoutError):
                raise Refused.late() from error
            raise Refused(503, "the replica that had the request is gone", cause="replica") from error
        self.heard = self.heard is not False
        self.metrics.observe(results, sent)
        if failed := next((result["failed"] for result in results if result["failed"]), None):
            raise Refused(500, f"the model failed: {failed}")
        if any(result["outputs"] is None for result in results):
            raise Refused.late()
        return [result["outputs"] for result in results]


class Lanes:
    """All lanes of a server; `models` are handles of their deployments, in the same order."""

    def __init__(
        self, bundle: Mapping[str, Any], models: Sequence[DeploymentHandle], metrics: Metrics
    ) -> None:
        described = zip(about(bundle), models, strict=True)
        self.every = [Lane(each, model, metrics) for each, model in described]
        self._by_name = {lane.name: lane for lane in self.every if lane.name}
        self._unasked = 0

    def of(self, header: str | None, named: object = None) -> Lane:
        """The lane of a request, which may name a priority in a header or in its parameters.

        Raises `Refused` for a priority that is not known.
        """
        if not self._by_name:
            return self.every[0]
        import priorities

        return self._by_name[priorities.chosen(list(self._by_name), header, named)]

    def known(self, header: str | None) -> Lane | None:
        """The lane of a request, where that is certain before the request is read."""
        return self._by_name.get(header or "") if self._by_name else self.every[0]

    @property
    def ready(self) -> bool:
        """Whether every request would find a replica."""
        return all(lane.replicas for lane in self.every)

    @property
    def inside(self) -> int:
        """The requests that wait or are computed."""
        return sum(lane.admission.inside for lane in self.every)

    def in_doubt(self) -> bool:
        """Whether to ask Ray for the replicas, which takes much longer than a request does.

        Not where each lane had answers since the last look, and no call without one; yet Ray is asked
        now and then, since their number may have changed.
        """
        heard = all(lane.heard for lane in self.every)
        for lane in self.every:
            lane.heard = None
        self._unasked = self._unasked + 1 if heard else 0
        return self._unasked % _ASKED_EVERY == 0

    def seen(self, deployments: Mapping[str, Any]) -> None:
        """Take note of the replicas that run, by what Ray says of the deployments."""
        for lane in self.every:
            deployment = deployments.get(lane.deployment)
            lane.replicas = deployment.replica_states.get("RUNNING", 0) if deployment else 0


def _bound(about: Mapping[str, Any]) -> Bound:
    """What the plan admits to a lane, and at the least two batches for each call at a time."""
    computed = about["instances"] * about["concurrency"] * about["largest_batch"]
    promised = {float(name[1:]) / 100: ms / 1000 for name, ms in about["slo_ms"].items()}
    return Bound(about["most_in_flight"], 2 * computed, promised)
