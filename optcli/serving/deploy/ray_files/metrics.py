"""What Prometheus reads at /metrics. Each process counts into files; any of them adds them all up.

The files lie in METRICS_FOLDER, or in a folder of this machine's Ray, which all its processes share, so
that counters also go on where a replica was replaced.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import defaultdict
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

from prometheus_client import Counter, Gauge, Histogram, generate_latest, registry  # noqa: E402
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead  # noqa: E402

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# From 0.1 ms to 10 s, four to a factor of ten.
_SECONDS = [round(10 ** (exponent / 4), 6) for exponent in range(-16, 5)]
_OF_PROMISE = (0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)
_DROPPED = {429: "queue_full", 504: "deadline"}


class Metrics:
    """The metrics of one replica; `application` is the name that it has in serve_config.yaml.

    `queue_depth` and `queue_bound` are gauges: requests that wait or are computed, and how many may.
    """

    def __init__(self, bundle: Mapping[str, Any], application: str) -> None:
        own = {"model": bundle["model"], "version": "1", "application": application}
        self._model, self._cpu_s = bundle["model"], 0.0

        def of(kind: Any, name: str, about: str, *labels: str, **more: Any) -> Any:
            metric = kind(f"model_{name}", about, [*own, *labels], registry=None, **more)
            return (lambda **by: metric.labels(**own, **by)) if labels else metric.labels(**own)

        near = {round(part * ms / 1000, 6) for ms in bundle["slo_ms"].values() for part in _OF_PROMISE}
        sizes = sorted({2**power for power in range(bundle["largest_batch"].bit_length())})
        times, whole = {"buckets": _SECONDS}, {"buckets": sorted({*near, *_SECONDS})}
        self._request = of(Histogram, "request_seconds", "Requests by outcome", "outcome", **whole)
        self._stage = of(Histogram, "stage_seconds", "Requests by stage", "stage", **times)
        self._compute = of(Histogram, "compute_seconds", "Calls by rows", "batch", **times)
        self._rows = of(Histogram, "batch_rows", "Rows of a call", buckets=sizes)
        self._cpu = of(Counter, "process_cpu_seconds", "Processor time", "process")
        self._hits = of(Counter, "cache_hits", "Requests that the cache answered")
        self._misses = of(Counter, "cache_misses", "Requests that the cache did not know")
        live = {"multiprocess_mode": "livesum"}
        self.queue_depth = of(Gauge, "queue_depth", "Requests that wait or are computed", **live)
        self.queue_bound = of(Gauge, "queue_bound", "Requests that may wait or be computed", **live)

    def stage(self, name: str, seconds: float) -> None:
        """A stage of a request took so long."""
        self._stage(stage=name).observe(seconds)

    def cached(self, hit: bool) -> None:
        """The cache knew an answer, or did not."""
        (self._hits if hit else self._misses).inc()

    def called(self, rows: int, seconds: float) -> None:
        """The model was called; also takes note of what the process has used."""
        self._rows.observe(rows)
        self._compute(batch=str(rows)).observe(seconds)
        used = time.process_time()
        self._cpu(process="replica").inc(used - self._cpu_s)
        self._cpu_s = used

    def staged(self, name: str) -> Any:
        """A context: what happens within it is a stage of a request."""
        return self._stage(stage=name).time()

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
        return generate_latest(_everything())

    def statistics(self) -> dict[str, Any]:
        """The same as the protocol's statistics of a model, in nanoseconds."""
        sums: dict[tuple[str, str], float] = defaultdict(float)
        for family in _everything().collect():
            for sample in family.samples:
                by = sample.labels.get("outcome") or sample.labels.get("stage") or ""
                sums[sample.name, by] += sample.value

        def spent(name: str, *kinds: str) -> dict[str, int]:
            count, seconds = (
                sum(sums[f"{name}_{part}", each] for each in kinds) for part in ("count", "sum")
            )
            return {"count": int(count), "ns": int(1e9 * seconds)}

        request, stage = "model_request_seconds", "model_stage_seconds"
        about = {
            "name": self._model,
            "version": "1",
            "inference_count": int(sums["model_batch_rows_sum", ""]),
            "execution_count": int(sums["model_batch_rows_count", ""]),
            "inference_stats": {
                "success": spent(request, "ok"),
                "fail": spent(request, "queue_full", "deadline", "error"),
                "queue": spent(stage, "batch_wait"),
                "compute_input": spent(stage, "parse"),
                "compute_infer": spent(stage, "compute"),
                "compute_output": spent(stage, "post"),
            },
        }
        return {"model_stats": [about]}


def _everything() -> registry.CollectorRegistry:
    """What all processes counted. Gauges of those that are gone do not count any more."""
    for pid in {int(path.stem.rpartition("_")[2]) for path in FOLDER.glob("gauge_live*.db")}:
        if not Path(f"/proc/{pid}").exists():
            mark_process_dead(pid)  # type: ignore[no-untyped-call]
    collected = registry.CollectorRegistry()
    MultiProcessCollector(collected)  # type: ignore[no-untyped-call]
    return collected
