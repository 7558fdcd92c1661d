"""What is simulated, and what a simulation says: plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from optcli.results import Estimate

if TYPE_CHECKING:
    import numpy as np

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
    `adaptive_wait`: nothing waits for a batch while the estimated rate times t(1) is at most 0.5.
    `ready_ms`: when each worker is ready first (cold starts); workers beyond its length at once.
    `spread`: how sealed batching spreads requests over replicas.

    Raises `InputError` for values that make no sense; sealed batching has no caps, timeouts and
    priorities.
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
    adaptive_wait: bool = False
    ready_ms: tuple[float, ...] = ()
    spread: Literal["random", "round-robin"] = "random"

    @property
    def workers(self) -> int:
        return self.instances * self.concurrency


@dataclass(frozen=True)
class Overhead:
    """Milliseconds before and after the model, per batch.

    Where they `occupy` the worker they lower the capacity; else they only add to the latency.
    """

    before_ms: float = 0.0
    after_ms: float = 0.0
    occupies: bool = False

    @property
    def total_ms(self) -> float:
        return self.before_ms + self.after_ms


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

    `busy` is the share of time that workers compute. `batch_sizes` counts batches by their size.
    `dropped` counts requests by cause: `full`, `timeout`, `stream`. `offered_per_s` is the rate that
    came, `served_per_s` the rate that was answered. `latencies_ms` [requests] has NaN for what was
    dropped; `finished_ms` [requests] likewise is when each was answered, from the start.
    `grows`: the queue grew from beginning to end, so that its percentiles mean nothing but that.
    """

    requests: int
    served: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    mean_ms: float
    mean_batch: float
    batch_sizes: Mapping[int, int]
    busy: float
    offered_per_s: float
    served_per_s: float
    dropped: Mapping[str, int]
    stages: Stages
    grows: bool
    latencies_ms: np.ndarray = field(repr=False)
    finished_ms: np.ndarray = field(repr=False)
    priority: np.ndarray | None = field(default=None, repr=False)

    @property
    def drop_share(self) -> float:
        """Dropped requests as a share of all."""
        raise NotImplementedError

    def percentile_ms(self, q: float, priority: int | None = None) -> float:
        """The q-quantile (0 < q <= 1) of what was answered, of one priority where one is named."""
        raise NotImplementedError

    def share_within(self, limit_ms: float) -> float:
        """The share of all requests that was answered within a limit; dropped ones were not."""
        raise NotImplementedError


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
    served_per_s: Estimate
    drop_share: Estimate
    stages: Stages
    batch_sizes: Mapping[int, int]
    dropped: Mapping[str, int]
    grows: bool
    runs: int
    requests: int
