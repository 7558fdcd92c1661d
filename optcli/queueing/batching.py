"""What is simulated, and what a simulation says: plain data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from optcli.errors import InputError
from optcli.queueing.quantities import number, whole
from optcli.results import Estimate

if TYPE_CHECKING:
    import numpy as np

PLACE = "batching"
# So that a table of times by batch size stays small.
MOST_IN_A_BATCH = 65_536
# When a batch is sent. "oldest-age" (Triton): a free worker takes a batch as soon as it is full or its
# oldest request has waited long enough. "sealed" (Ray Serve): each replica closes one batch after the
# other by the same rule, whether its worker is free or not.
Semantics = Literal["oldest-age", "sealed"]
# What a full queue does with a request: refuse it, or take it and drop the oldest that waits.
OnFull = Literal["reject-newest", "drop-oldest"]


@dataclass(frozen=True)
class Batching:
    """A configuration of a server.

    `batch` is the largest batch, `wait_ms` the longest wait for it. There are `instances` *
    `concurrency` workers. `queue_cap` is the most requests that wait (None: no cap), `on_full` what
    happens then. `timeout_ms`: what has waited longer when it would be sent is dropped.
    `stream_cap` is the most requests of one stream that wait; its oldest is dropped for a new one.
    `ready_ms`: when each worker is ready first (cold starts); workers beyond its length at once.
    Sealed batching spreads requests over replicas by chance, over those that are ready.
    `most_sent`: of sealed batching, the most requests at all replicas; the others wait before them, and
    go in calls that are as full as can be (None: all go at once).

    Sealed batching has no caps, timeouts and priorities. Raises `InputError` for a batch, a wait or
    workers that make no sense.
    """

    batch: int
    wait_ms: float = 0.0
    instances: int = 1
    concurrency: int = 1
    semantics: Semantics = "oldest-age"
    queue_cap: int | None = None
    on_full: OnFull = "reject-newest"
    timeout_ms: float | None = None
    stream_cap: int | None = None
    ready_ms: tuple[float, ...] = ()
    most_sent: int | None = None

    def __post_init__(self) -> None:
        whole(self.batch, "the largest batch", PLACE, least=1, most=MOST_IN_A_BATCH)
        number(self.wait_ms, "the longest wait", PLACE, least=0)
        whole(self.instances, "the number of instances", PLACE, least=1)
        whole(self.concurrency, "the concurrency", PLACE, least=1)
        if self.most_sent is not None:
            whole(self.most_sent, "the most requests at the replicas", PLACE, least=self.batch)

    @property
    def workers(self) -> int:
        """Batches that can be computed at the same time."""
        return self.instances * self.concurrency

    @property
    def drops(self) -> bool:
        """Whether a request can be dropped."""
        return any(limit is not None for limit in (self.queue_cap, self.stream_cap, self.timeout_ms))


@dataclass(frozen=True)
class Overhead:
    """Milliseconds before and after the model, per batch.

    With `occupies` the worker is busy meanwhile, which lowers the capacity; else they only add to the
    latency. `ingress_ms` is the work of each request at the server's ingress, which takes one request
    after the other in the order in which they arrive; it varies by the squared coefficient of variation
    `ingress_cv2` (gamma distributed; 0: constant). `call_ms` is the part of a batch's time that is for
    its calls: as long for each request, and only once for those that an ingress sends in one call.
    Raises `InputError` for negative values.
    """

    before_ms: float = 0.0
    after_ms: float = 0.0
    occupies: bool = False
    ingress_ms: float = 0.0
    ingress_cv2: float = 0.0
    call_ms: float = 0.0

    def __post_init__(self) -> None:
        number(self.before_ms, "the overhead before the model", PLACE, least=0)
        number(self.after_ms, "the overhead after the model", PLACE, least=0)
        number(self.ingress_ms, "the work at the ingress", PLACE, least=0)
        number(self.ingress_cv2, "the variation of the work at the ingress", PLACE, least=0)
        number(self.call_ms, "the work for a call", PLACE, least=0)

    @property
    def total_ms(self) -> float:
        """What it adds to the latency of a request, the ingress apart."""
        return self.before_ms + self.after_ms

    @property
    def alone_ms(self) -> float:
        """What it adds to the latency of a request that is alone in the server."""
        return self.total_ms + self.ingress_ms

    @property
    def occupied_ms(self) -> float:
        """What it adds to the time for which a batch keeps its worker."""
        return self.total_ms if self.occupies else 0.0

    def occupied_at_least_ms(self, batching: Batching) -> float:
        """The same for the largest batch, less what it saves where it comes in one call."""
        together = batching.most_sent is not None
        return self.occupied_ms - (self.call_ms * (batching.batch - 1) if together else 0.0)


@dataclass(frozen=True, eq=False)
class Batches:
    """What was sent: `members` [served], request numbers batch after batch, and [batches] arrays.

    `closed_ms` is when nothing more could join, `started_ms` when a worker took it, `took_ms` for how
    long. `free_ms` is when a worker became free for it, -inf where a batch closes without one. `sizes`
    are its requests.
    """

    members: np.ndarray
    sizes: np.ndarray
    free_ms: np.ndarray
    closed_ms: np.ndarray
    started_ms: np.ndarray
    took_ms: np.ndarray


@dataclass(frozen=True)
class Stages:
    """Where the mean latency goes, in milliseconds.

    `wait_ms` until the batch is sent although a worker is free, `queue_ms` until a worker is free,
    then `compute_ms` and `overhead_ms`.
    """

    wait_ms: float
    queue_ms: float
    compute_ms: float
    overhead_ms: float


@dataclass(frozen=True, eq=False)
class Simulation:
    """What one run says of the requests after its warm-up. Latencies in milliseconds.

    `busy` is the share of time for which workers are taken. `grows`: all workers were always busy and
    the latency rose from beginning to end, so that the percentiles depend on the length of the run.

    The arrays hold all requests, those of the warm-up (the first `skipped`) as well:
    `latencies_ms` [all], NaN for what was dropped; `finished_ms` [all], when each was answered,
    likewise; `priority` [all] or None. Percentiles are NaN where nothing was answered.
    """

    p50_ms: float
    p95_ms: float
    p99_ms: float
    mean_ms: float
    mean_batch: float
    busy: float
    stages: Stages
    grows: bool
    skipped: int
    latencies_ms: np.ndarray = field(repr=False)
    finished_ms: np.ndarray = field(repr=False)
    priority: np.ndarray | None = field(default=None, repr=False)

    @property
    def drop_share(self) -> float:
        """Dropped requests as a share of all after the warm-up."""
        import numpy as np

        return float(np.isnan(self._counted(None)).mean())

    def percentile_ms(self, q: float, priority: int | None = None) -> float:
        """The q-quantile (0 < q <= 1) of what was answered, of one priority where one is named.

        NaN where nothing was answered. Raises `InputError` for another q, and for a priority where the
        requests have none.
        """
        if not 0 < q <= 1:
            raise InputError(
                f"{q!r} is no quantile", place=PLACE, hint="give a number above 0, up to 1"
            )
        return percentiles_ms(self._counted(priority), [q])[0]

    def _counted(self, priority: int | None) -> np.ndarray:
        latencies = self.latencies_ms[self.skipped :]
        if priority is None:
            return latencies
        if self.priority is None:
            raise InputError(
                "the requests have no priorities", place=PLACE, hint="draw them with with_priorities"
            )
        chosen: np.ndarray = latencies[self.priority[self.skipped :] == priority]
        return chosen


def percentiles_ms(latencies: np.ndarray, levels: Sequence[float]) -> list[float]:
    """Order statistics of latencies [requests], as `statistics.percentile`, without the dropped ones.

    NaN, which stands for a dropped request, is left out; all are NaN where nothing is left.
    """
    import numpy as np

    answered = latencies[~np.isnan(latencies)]
    if not answered.size:
        return [math.nan for _ in levels]
    return [float(each) for each in np.quantile(answered, levels, method="inverted_cdf")]


@dataclass(frozen=True)
class Prediction:
    """Several runs with different seeds: means with 95 % intervals over the seeds (Student's t).

    Latencies in milliseconds, `busy` and `drop_share` as fractions. `grows`: in any of the runs.
    """

    p50_ms: Estimate
    p95_ms: Estimate
    p99_ms: Estimate
    mean_ms: Estimate
    mean_batch: Estimate
    busy: Estimate
    drop_share: Estimate
    stages: Stages
    grows: bool
    requests: int
