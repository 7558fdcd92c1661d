"""The server's own metrics: read as Prometheus text, and what two readings say together."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from optcli.environment import pip_install
from optcli.errors import InputError, MissingError
from optcli.results.loadtest import ServerFigures
from optcli.serving.loadtest.endpoint import fetched

_MOST_BYTES = 1024 * 1024
_TIMEOUT_S = 5.0
# What no metric and no label has.
_MOST_VALUE, _MOST_LABEL = 1e18, 100
_MOST_DIGITS = 9
# How Ray names the process that listens, and those that hold a replica.
_PROCESSES = {"ProxyActor": "ingress", "ServeReplica": "replica"}
_CPU = "model_process_cpu_seconds_total"


@dataclass(frozen=True)
class Reading:
    """One reading of `/metrics`: values by name and the one label that counts, summed over others."""

    at_s: float
    values: Mapping[tuple[str, str], float] = field(default_factory=dict)

    def of(self, name: str) -> dict[str, float]:
        """Values of a metric by its label."""
        return {label: value for (own, label), value in self.values.items() if own == name}


# The label by which each metric is looked at; others, such as the replica, are summed over.
_LABELS = {
    "model_stage_seconds_sum": "stage",
    "model_stage_seconds_count": "stage",
    "model_compute_seconds_sum": "batch",
    "model_compute_seconds_count": "batch",
    "model_cache_hits_total": "",
    "model_cache_misses_total": "",
    _CPU: "process",
}


def read(url: str, at_s: float, pids: Sequence[int] = ()) -> Reading | None:
    """The metrics of a server at a time in seconds; None where it has none that are known.

    `pids` are the processes of a bundle's server, whose processor time the system knows.
    """
    try:
        status, body = fetched(url, "/metrics", most_bytes=_MOST_BYTES, timeout_s=_TIMEOUT_S)
    except InputError:
        return None
    if status != 200:
        return None
    reading = parsed(body.decode("utf-8", errors="replace"), at_s)
    if not reading.values:
        return None
    return Reading(reading.at_s, {**reading.values, **_processor_times(pids)})


def _processor_times(pids: Sequence[int]) -> dict[tuple[str, str], float]:
    """Processor time of Ray's proxy and of the replicas below the first of some processes."""
    import psutil

    times: dict[tuple[str, str], float] = {}
    with contextlib.suppress(psutil.Error, IndexError):
        for process in psutil.Process(pids[0]).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                title, spent = " ".join(process.cmdline()), process.cpu_times()
                for name in (each for part, each in _PROCESSES.items() if part in title):
                    times[_CPU, name] = times.get((_CPU, name), 0.0) + spent.user + spent.system
    return times


def parsed(text: str, at_s: float) -> Reading:
    """A reading of Prometheus text; what cannot be read has no values. Raises `MissingError`."""
    try:
        from prometheus_client.parser import text_string_to_metric_families
    except ImportError as error:
        raise MissingError(
            "reading the server's metrics needs prometheus_client, which is not installed",
            place="optcli loadtest",
            hint=pip_install("serve"),
        ) from error
    values: dict[tuple[str, str], float] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                label, value = _LABELS.get(sample.name), float(sample.value)
                if label is None or not math.isfinite(value) or abs(value) > _MOST_VALUE:
                    continue
                key = (sample.name, sample.labels.get(label, "")[:_MOST_LABEL] if label else "")
                values[key] = values.get(key, 0.0) + value
    except Exception:  # whatever a broken text makes the library raise
        return Reading(at_s)
    return Reading(at_s, values)


def figures(before: Reading | None, after: Reading | None, batch: int | None) -> ServerFigures | None:
    """What happened between two readings; None where one is missing. `batch`: the largest batch."""
    if before is None or after is None or after.at_s <= before.at_s:
        return None
    seconds = after.at_s - before.at_s
    stages = _means(before, after, "model_stage_seconds")
    computes = dict(sorted(calls(before, after).items()))
    count = sum(count for count, _ in computes.values())
    rows = sum(size * count for size, (count, _) in computes.items()) / count if count else None
    hits = _grown(before, after, "model_cache_hits_total").get("", 0.0)
    misses = _grown(before, after, "model_cache_misses_total").get("", 0.0)
    return ServerFigures(
        stages_ms={stage: 1000 * mean for stage, mean in stages.items()},
        batch_rows=rows,
        batch_fill=rows / batch if rows is not None and batch else None,
        compute_ms={size: mean for size, (_, mean) in computes.items()},
        calls={size: count for size, (count, _) in computes.items()},
        cpu_cores={process: spent / seconds for process, spent in _grown(before, after, _CPU).items()},
        cache_hit_share=hits / (hits + misses) if hits + misses else None,
    )


def calls(before: Reading, after: Reading) -> dict[int, tuple[int, float]]:
    """Calls of the model between two readings: their number and mean milliseconds by rows."""
    counts = _grown(before, after, "model_compute_seconds_count")
    means = _means(before, after, "model_compute_seconds")
    return {
        int(size): (int(counts[size]), 1000 * mean)
        for size, mean in means.items()
        if size.isdecimal() and len(size) <= _MOST_DIGITS and int(size) > 0
    }


def work_ms(
    before: Reading, after: Reading, threads: int, points_ms: Mapping[int, float]
) -> tuple[float, float]:
    """Processor time of a request: at the ingress, and in a replica beside the model.

    In milliseconds; (0, 0) where no request came. A call of the model takes `threads` processors, as
    long as `points_ms` says by its rows; calls of other rows took as long as they did.
    """
    requests, ingress_s = at_ingress(before, after)
    if not requests:
        return 0.0, 0.0
    cpu_s = _grown(before, after, _CPU)
    cpu_s.pop("ingress", None)
    seen = calls(before, after)
    model_ms = sum(count * points_ms.get(size, mean) for size, (count, mean) in seen.items())
    model_s = threads * model_ms / 1000
    return 1000 * ingress_s / requests, 1000 * max(0.0, sum(cpu_s.values()) - model_s) / requests


def at_ingress(before: Reading, after: Reading) -> tuple[float, float]:
    """Requests that came to the ingress, and its processor time in seconds."""
    requests = _grown(before, after, "model_stage_seconds_count").get("parse", 0.0)
    return requests, _grown(before, after, _CPU).get("ingress", 0.0)


def processor_s(before: Reading, after: Reading) -> float:
    """Processor time of the ingress and the replicas together, in seconds."""
    return sum(_grown(before, after, _CPU).values())


def _means(before: Reading, after: Reading, name: str) -> dict[str, float]:
    sums = _grown(before, after, f"{name}_sum")
    counts = _grown(before, after, f"{name}_count")
    return {label: sums.get(label, 0.0) / count for label, count in counts.items() if count}


def _grown(before: Reading, after: Reading, name: str) -> dict[str, float]:
    """What a counter grew by; one that fell was begun anew by a process that restarted."""
    earlier = before.of(name)
    grown = {label: value - earlier.get(label, 0.0) for label, value in after.of(name).items()}
    later = after.of(name)
    return {label: later[label] if change < 0 else change for label, change in grown.items()}
