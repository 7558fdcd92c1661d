"""What Prometheus reads: the ingress counts for all replicas, which report with their results."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# From 0.1 ms to 10 s, four to a factor of ten.
_SECONDS = [round(10 ** (exponent / 4), 6) for exponent in range(-16, 5)]
_PAGE = resource.getpagesize()


def usage() -> tuple[float, int]:
    """Seconds of processor time of this process, and the bytes of memory that it occupies."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return time.process_time(), pages * _PAGE


class Metrics:
    """The metrics of one ingress; `of` gives those of a priority, which is a label where there are any.

    `lanes` are what bundle.json says of each priority, or of all requests together.
    """

    def __init__(self, lanes: Sequence[Mapping[str, Any]]) -> None:
        self.registry = CollectorRegistry()
        self.priorities = [each["name"] for each in lanes if each["name"]]
        by = ["priority"] if self.priorities else []
        to: Any = {"registry": self.registry}
        time_of: Any = {"buckets": _SECONDS, **to}
        self.stage = Histogram(
            "model_stage_seconds", "Time of a request by stage", ["stage", *by], **time_of
        )
        self.compute = Histogram(
            "model_compute_seconds", "Time of a call by its rows", ["batch", *by], **time_of
        )
        largest = {each["largest_batch"] for each in lanes}
        sizes = sorted({2**power for power in range(max(largest).bit_length())} | largest)
        self.rows = Histogram("model_batch_rows", "Rows of a call", by, buckets=sizes, **to)
        self.depth = Gauge("model_queue_depth", "Requests that wait or are computed", by, **to)
        self.bound = Gauge("model_queue_bound", "Requests that may wait or be computed now", by, **to)
        self.dropped = Counter("model_dropped", "Requests not answered", ["cause", *by], **to)
        self.requests = Counter("model_requests", "Requests by HTTP status", ["code", *by], **to)
        self.hits = Counter("model_cache_hits", "Requests that the cache answered", **to)
        self.misses = Counter("model_cache_misses", "Requests that the cache did not know", **to)
        self.processes: dict[str, tuple[float, int]] = {}
        self.replicas: dict[str, str] = {}
        self.registry.register(self)
        # Where a request is refused before its priority is read, the label is empty.
        self._of = {name: OfPriority(self, name) for name in ["", *self.priorities]}

    def of(self, priority: str) -> OfPriority:
        """What is counted of the requests of a priority; "" where there are none."""
        return self._of[priority]

    def collect(self) -> Iterator[Metric]:
        """What the processes have used, for the registry."""
        cpu = CounterMetricFamily("model_process_cpu_seconds", "Processor time", labels=["process"])
        memory = GaugeMetricFamily("model_process_rss_bytes", "Resident memory", labels=["process"])
        for name, (seconds, size) in {"ingress": usage(), **self.processes}.items():
            cpu.add_metric([name], seconds)
            memory.add_metric([name], size)
        yield from (cpu, memory)

    def text(self) -> bytes:
        """All of it in Prometheus' text form."""
        return generate_latest(self.registry)


class OfPriority:
    """The same metrics for the requests of one priority."""

    def __init__(self, metrics: Metrics, priority: str) -> None:
        self._metrics = metrics
        self._label = {"priority": priority} if metrics.priorities else {}
        label = self._label
        self._rows = metrics.rows.labels(**label) if label else metrics.rows
        self._depth = metrics.depth.labels(**label) if label else metrics.depth
        self._bound = metrics.bound.labels(**label) if label else metrics.bound
        for cause in ("queue_full", "deadline", "replica"):
            metrics.dropped.labels(cause=cause, **self._label)

    def stage(self, name: str, seconds: float) -> None:
        """A stage of a request took so long."""
        self._metrics.stage.labels(stage=name, **self._label).observe(seconds)

    def waiting(self, count: int, most: int) -> None:
        """So many requests wait or are computed, of so many that may."""
        self._depth.set(count)
        self._bound.set(most)

    def answered(self, code: int, cause: str) -> None:
        """A request got an HTTP status; `cause` says why it was dropped, where it was."""
        self._metrics.requests.labels(code=str(code), **self._label).inc()
        if cause:
            self._metrics.dropped.labels(cause=cause, **self._label).inc()

    def observe(self, results: Iterable[Mapping[str, Any]], sent: float) -> None:
        """Count what replicas report of the parts of a request, which they were sent at `sent`.

        Replicas are numbered as they are seen.
        """
        for result in results:
            seconds = result["end"] - result["start"]
            queued = result["arrived"] - sent + result["start"] - result["sealed"]
            self.stage("queue", queued)
            self.stage("batch_wait", result["sealed"] - result["arrived"])
            if result["outputs"] is not None:
                self.stage("compute", seconds)
            if "usage" in result:
                replicas, processes = self._metrics.replicas, self._metrics.processes
                name = replicas.setdefault(result["replica"], f"replica-{len(replicas)}")
                processes[name] = result["usage"]
                if result["rows"]:
                    self._rows.observe(result["rows"])
                    rows = str(result["rows"])
                    self._metrics.compute.labels(batch=rows, **self._label).observe(seconds)
