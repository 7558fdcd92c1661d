"""What Prometheus reads: the ingress counts for all replicas, which report with their results."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterable, Iterator, Mapping
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
    """The metrics of one ingress; `stage` and the others are Prometheus metrics to observe."""

    def __init__(self, largest_batch: int) -> None:
        self.registry = CollectorRegistry()
        to: Any = {"registry": self.registry}
        self.stage = Histogram(
            "model_stage_seconds", "Time of a request by stage", ["stage"], buckets=_SECONDS, **to
        )
        self.compute = Histogram(
            "model_compute_seconds", "Time of a call by its rows", ["batch"], buckets=_SECONDS, **to
        )
        sizes = sorted({2**power for power in range(largest_batch.bit_length())} | {largest_batch})
        self.rows = Histogram("model_batch_rows", "Rows of a call", buckets=sizes, **to)
        self.depth = Gauge("model_queue_depth", "Requests that wait or are computed", **to)
        self.dropped = Counter("model_dropped", "Requests not answered", ["cause"], **to)
        for cause in ("queue_full", "deadline", "replica"):
            self.dropped.labels(cause)
        self.requests = Counter("model_requests", "Requests by HTTP status", ["code"], **to)
        self.hits = Counter("model_cache_hits", "Requests that the cache answered", **to)
        self.misses = Counter("model_cache_misses", "Requests that the cache did not know", **to)
        self.processes: dict[str, tuple[float, int]] = {}
        self._replicas: dict[str, str] = {}
        self.registry.register(self)

    def observe(self, results: Iterable[Mapping[str, Any]], sent: float) -> None:
        """Count what replicas report of the parts of a request, which they were sent at `sent`.

        Replicas are numbered as they are seen.
        """
        for result in results:
            seconds = result["end"] - result["start"]
            queued = result["arrived"] - sent + result["start"] - result["sealed"]
            self.stage.labels("queue").observe(queued)
            self.stage.labels("batch_wait").observe(result["sealed"] - result["arrived"])
            if result["outputs"] is not None:
                self.stage.labels("compute").observe(seconds)
            if "usage" in result:
                name = f"replica-{len(self._replicas)}"
                self.processes[self._replicas.setdefault(result["replica"], name)] = result["usage"]
                if result["rows"]:
                    self.rows.observe(result["rows"])
                    self.compute.labels(str(result["rows"])).observe(seconds)

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
