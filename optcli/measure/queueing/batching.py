"""What is simulated, and what a simulation says: plain data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from optcli.errors import InputError
from optcli.measure.queueing import number, whole
from optcli.results import Estimate

PLACE = "batching"
# So that a table of times by batch size stays small.
MOST_IN_A_BATCH = 65_536
# When a batch is sent. "oldest-age" (Triton): a free worker takes a batch as soon as it is full or its
# oldest request has waited long enough. "sealed" (Ray Serve): each replica closes one batch after the
# other by the same rule, whether its worker is free or not.
Semantics = Literal["oldest-age", "sealed"]


@dataclass(frozen=True)
class Batching:
    """A configuration of a server.

    `batch` is the largest batch, `wait_ms` the longest wait for it. There are `instances` *
    `concurrency` workers. Sealed batching spreads requests over replicas by chance. Raises `InputError`
    for a batch, a wait or workers that make no sense.
    """

    batch: int
    wait_ms: float = 0.0
    instances: int = 1
    concurrency: int = 1
    semantics: Semantics = "oldest-age"

    def __post_init__(self) -> None:
        whole(self.batch, "the largest batch", PLACE, least=1, most=MOST_IN_A_BATCH)
        number(self.wait_ms, "the longest wait", PLACE, least=0)
        whole(self.instances, "the number of instances", PLACE, least=1)
        whole(self.concurrency, "the concurrency", PLACE, least=1)

    @property
    def workers(self) -> int:
        """Batches that can be computed at the same time."""
        return self.instances * self.concurrency


@dataclass(frozen=True)
class Overhead:
    """Milliseconds before and after the model, which add to the latency of a request.

    `ingress_ms` is the work of each request at the server's ingress, which varies by the
    squared coefficient of variation `ingress_cv2` (gamma distributed; 0: constant). `ingresses`
    processes share the requests, and each takes one after the other. Raises `InputError` for negative
    values.
    """

    before_ms: float = 0.0
    after_ms: float = 0.0
    ingress_ms: float = 0.0
    ingress_cv2: float = 0.0
    ingresses: int = 1

    def __post_init__(self) -> None:
        number(self.before_ms, "the overhead before the model", PLACE, least=0)
        number(self.after_ms, "the overhead after the model", PLACE, least=0)
        number(self.ingress_ms, "the work at the ingress", PLACE, least=0)
        number(self.ingress_cv2, "the variation of the work at the ingress", PLACE, least=0)
        whole(self.ingresses, "the number of ingress processes", PLACE, least=1)

    @property
    def total_ms(self) -> float:
        """What it adds to the latency of a request, the ingress apart."""
        return self.before_ms + self.after_ms

    @property
    def alone_ms(self) -> float:
        """What it adds to the latency of a request that is alone in the server."""
        return self.total_ms + self.ingress_ms

    @property
    def apart_ms(self) -> float:
        """The time between two requests that the ingress passes at most."""
        return self.ingress_ms / self.ingresses


@dataclass(frozen=True, eq=False)
class SentBatches:
    """What was sent: `members` [requests], numbers batch after batch, and [batches] arrays.

    `started_ms` is when a worker took it, `took_ms` for how long. `sizes` are its requests.
    """

    members: np.ndarray
    sizes: np.ndarray
    started_ms: np.ndarray
    took_ms: np.ndarray


@dataclass(frozen=True, eq=False)
class Simulation:
    """What one run says of the requests after its warm-up. Latencies in milliseconds.

    `busy` is the share of time for which workers are taken. `grows`: all workers were always busy and
    the latency rose from beginning to end, so that the percentiles depend on the length of the run.

    The arrays hold all requests, those of the warm-up (the first `skipped`) as well: `latencies_ms`
    [all]; `started_ms` [all], when a worker took each; `finished_ms` [all], when it was answered.
    """

    p50_ms: float
    p95_ms: float
    p99_ms: float
    mean_ms: float
    mean_batch: float
    busy: float
    grows: bool
    skipped: int
    latencies_ms: np.ndarray = field(repr=False)
    started_ms: np.ndarray = field(repr=False)
    finished_ms: np.ndarray = field(repr=False)

    def percentile_ms(self, q: float) -> float:
        """The q-quantile (0 < q <= 1) of the requests. Raises `InputError` for another q."""
        if not 0 < q <= 1:
            raise InputError(
                f"{q!r} is no quantile", place=PLACE, hint="give a number above 0, up to 1"
            )
        return percentiles_ms(self.latencies_ms[self.skipped :], [q])[0]


def percentiles_ms(latencies: np.ndarray, levels: Sequence[float]) -> list[float]:
    """Order statistics of latencies [requests], as `statistics.percentile`; NaN where there is none."""
    if not latencies.size:
        return [math.nan for _ in levels]
    return [float(each) for each in np.quantile(latencies, levels, method="inverted_cdf")]


@dataclass(frozen=True)
class Prediction:
    """Several runs with different seeds: means with 95 % intervals over the seeds (Student's t).

    Latencies in milliseconds, `busy` as a fraction. `grows`: in any of the runs.
    """

    p50_ms: Estimate
    p95_ms: Estimate
    p99_ms: Estimate
    mean_ms: Estimate
    mean_batch: Estimate
    busy: Estimate
    grows: bool
    requests: int
