"""What Prometheus reads at /metrics. Each process counts into files; any of them adds them all up.

The files lie in METRICS_FOLDER, or in a folder of this machine's Ray, which all its processes share, so
that counters also go on where a replica was replaced.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ray

_NAMED = os.environ.get("METRICS_FOLDER")
FOLDER = Path(_NAMED or f"{tempfile.gettempdir()}/metrics-{ray.get_runtime_context().get_node_id()}")
FOLDER.mkdir(mode=0o700, parents=True, exist_ok=True)
# prometheus_client looks at this when it is imported. Ray's own processes use it, too, so that it is
# set for this process alone.
os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(FOLDER)

from prometheus_client import Gauge, Histogram, generate_latest, registry  # noqa: E402
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead  # noqa: E402

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# From 0.1 ms to 10 s, four to a factor of ten.
_SECONDS = [round(10 ** (exponent / 4), 6) for exponent in range(-16, 5)]
_OF_PROMISE = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)
_DROPPED = {429: "queue_full", 504: "deadline"}


class Metrics:
    """The metrics of one replica; `application` is the name that it has in serve_config.yaml.

    `stage` and `compute` give the histogram of a label: stages of requests, calls of the model by rows.
    `queue_depth` and `queue_bound` are gauges: requests that wait or are computed, and how many may.
    """

    def __init__(self, bundle: Mapping[str, Any], application: str) -> None:
        self._own = {"model": bundle["model"], "version": "1", "application": application}
        near = {round(part * ms / 1000, 6) for ms in bundle["slo_ms"].values() for part in _OF_PROMISE}
        times, whole = {"buckets": _SECONDS}, {"buckets": sorted({*near, *_SECONDS})}
        self._request = self.of(Histogram, "request_seconds", "Requests by outcome", "outcome", **whole)
        self.stage = self.of(Histogram, "stage_seconds", "Requests by stage", "stage", **times)
        self.compute = self.of(Histogram, "compute_seconds", "Calls by rows", "batch", **times)
        live = {"multiprocess_mode": "livesum"}
        self.queue_depth = self.of(Gauge, "queue_depth", "Requests inside", **live)
        self.queue_bound = self.of(Gauge, "queue_bound", "Requests that may be inside", **live)

    def of(self, kind: Any, name: str, about: str, *labels: str, **more: Any) -> Any:
        """A metric of this model; with further labels a function of their values."""
        own = self._own
        metric = kind(f"model_{name}", about, [*own, *labels], registry=None, **more)
        return (lambda **by: metric.labels(**own, **by)) if labels else metric.labels(**own)

    @contextmanager
    def request(self) -> Iterator[None]:
        """Something is a whole request; it ends well, or raises what may have a `status`."""
        begun, status = time.perf_counter(), 499  # what proxies call a client that has left
        try:
            yield
            status = 200
        except Exception as error:
            status = getattr(error, "status", 500)
            raise
        finally:
            outcome = "ok" if status < 400 else "invalid" if status < 500 else "error"
            took = time.perf_counter() - begun
            self._request(outcome=_DROPPED.get(status, outcome)).observe(took)

    def text(self) -> bytes:
        """The metrics of all processes in Prometheus' text form."""
        return generate_latest(everything())


def everything() -> registry.CollectorRegistry:
    """What all processes counted. Gauges of those that are gone do not count any more."""
    for pid in {int(path.stem.rpartition("_")[2]) for path in FOLDER.glob("gauge_live*.db")}:
        if not Path(f"/proc/{pid}").exists():
            mark_process_dead(pid)  # type: ignore[no-untyped-call]
    collected = registry.CollectorRegistry()
    MultiProcessCollector(collected)  # type: ignore[no-untyped-call]
    return collected
