"""Calibration: the curve t(B) and the overhead, as the running server shows them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from optcli.errors import InputError, UsageError
from optcli.files import regular_files
from optcli.measure.queueing.arrivals import Poisson
from optcli.measure.queueing.batching import Batching
from optcli.measure.queueing.formulas import capacity_per_s
from optcli.results.loadtest import LOADTEST_SCHEMA, Calibration
from optcli.serving.loadtest import metrics, predicting
from optcli.serving.loadtest.driving import Driver
from optcli.serving.loadtest.messages import Sent
from optcli.serving.loadtest.metrics import Reading
from optcli.serving.loadtest.records import Records, Spans

FILE = "calibration.json"
# Lone requests of one row and of each other number of rows, and for how long a phase lasts at most.
_LONE, _OF_SIZE, _PHASE_S = 30, 40, 15.0
_FEWEST_OF_SIZE = 5
# Lone requests that a busy machine may delay beyond their deadline, as a share.
_MOST_FAILED = 0.2
# A size that the model saw less often says too little.
_FEWEST_CALLS = 4
# Shares of what the server carries, where its parts compete for the processors as they do in service.
# Before the first, the ingress is taken to work for all of the overhead; the second knows its work.
_LOAD_SHARES, _LOAD_S = (0.5, 0.7), 30.0
# The first of so many parts of a load does not count.
_PARTS = 6
# Of the ingress' processor all else than requests is taken to have at most this share.
_MOST_OTHERS = 0.5
# What a request adds to the ingress' work is taken to be at least this share of the work for each.
_LEAST_ADDED = 0.5
# The work at the ingress varies at most so much, and its variation is found so closely.
_MOST_CV2, _CV2_STEPS = 16.0, 8


def calibrated(driver: Driver) -> Calibration:
    """Load the server with lone requests of all sizes and in the middle, and read its calls' times.

    Raises `UsageError` for a server whose metrics do not have them, and where it is not known how it
    batches.
    """
    served = driver.endpoint.served
    batch, instances = served.batch, served.instances
    if batch is None or instances is None:
        raise UsageError(
            "optcli does not know how the server batches",
            place="--calibrate",
            hint="name the plan that it was deployed with: --plan plan.json",
        )
    whole = _Phases(driver)
    lone_ms = whole.lone(rate_per_s=2.0, count=5)[0]
    latency_ms, reading = whole.lone(min(10.0, 300 / lone_ms), _LONE)
    light, known = whole.taken, metrics.calls(*reading)
    if 1 not in known:
        raise UsageError(
            "the server's /metrics have no model_compute_seconds by batch size",
            place=served.url,
            hint="calibrate a server that `optcli deploy --target ray` wrote",
        )
    one_ms = known[1][1]
    stages = metrics.figures(*reading, batch)
    assert stages is not None
    # A lone request stands in no queue: what the server calls so is its way to the replica.
    waited_ms = stages.stages_ms.get("batch_wait", served.wait_ms or 0.0)
    overhead_ms = max(0.0, latency_ms - waited_ms - one_ms)
    if all(each.shape and each.shape[0] == -1 for each in driver.endpoint.inputs):
        for size in _sizes(batch)[1:]:
            # Surely over before the next: no batch takes longer than its rows one by one.
            whole.sized(size, (lone_ms + 2 * size * one_ms + 30) / 1000)
    calibration = _calibration(
        driver, whole, overhead_ms, MeasuredWork(ingress_ms=max(overhead_ms, 1.0))
    )
    seen: dict[float, float] = {}
    for share in _LOAD_SHARES:
        rate = share * _carried_per_s(driver, calibration)
        work, seen[rate] = whole.loaded(rate, light)
        calibration = _calibration(driver, whole, overhead_ms, work)
    return calibration.model_copy(update={"ingress_cv2": _variation(driver, calibration, seen)})


def read(path: Path) -> Calibration | None:
    """A calibration that was stored; None where there is none. Raises `InputError`."""
    again = "calibrate again: optcli loadtest TARGET --calibrate"
    try:
        stored = Calibration.model_validate(regular_files.json_of(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, ValidationError) as error:
        first = str(error)
        if isinstance(error, ValidationError):
            about = error.errors()[0]
            first = f"{'.'.join(map(str, about['loc']))}: {about['msg']}"
        raise InputError(f"this is no calibration: {first}", place=str(path), hint=again) from error
    if stored.schema_version != LOADTEST_SCHEMA or not stored.points_ms:
        raise InputError(
            f"the calibration has schema {stored.schema_version}, wanted {LOADTEST_SCHEMA}, and points",
            place=str(path),
            hint=again,
        )
    return stored


@dataclass(frozen=True)
class MeasuredWork:
    """Processor time of a request in ms: at the ingress, and in a replica beside the model."""

    ingress_ms: float
    replica_ms: float = 0.0


@dataclass(frozen=True)
class Taken:
    """What a load took of the processor that the ingress has.

    `processors` is what the ingress took, and the client where it runs there as well; `others` is what
    Ray's other processes took. Both are shares of the time.
    """

    rate_per_s: float
    processors: float
    others: float


def at_ingress_ms(light: Taken, heavy: Taken) -> float:
    """How long the ingress works for a request, in milliseconds.

    Part of its work goes on without requests. A light load and a heavy one, at twice the rate or more,
    tell the two apart. A request takes what it adds, on what the rest leaves of the processor.
    """
    added_s = all_s = heavy.processors / heavy.rate_per_s
    if heavy.rate_per_s >= 2 * light.rate_per_s:
        between = heavy.rate_per_s - light.rate_per_s
        added_s = (heavy.processors - light.processors) / between
        added_s = min(max(added_s, _LEAST_ADDED * all_s), all_s)
    always = heavy.processors - added_s * heavy.rate_per_s
    return 1000 * added_s / (1 - min(always + heavy.others, _MOST_OTHERS))


class _Phases:
    """Loads with the readings of the server's metrics around each."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.readings: list[tuple[Reading, Reading]] = []
        self.taken = Taken(0.0, 0.0, 0.0)

    def lone(self, rate_per_s: float, count: int) -> tuple[float, tuple[Reading, Reading]]:
        """The mean latency of requests that are alone in the server, in milliseconds."""
        times = 1000 / rate_per_s * np.arange(count, dtype=float)
        records = self._sent(times, "lone requests")
        return float(np.mean(records.latencies_ms)), self.readings[-1]

    def sized(self, rows: int, apart_s: float) -> None:
        """Lone requests of several rows, which the model gets as one batch."""
        count = max(_FEWEST_OF_SIZE, min(_OF_SIZE, math.floor(_PHASE_S / apart_s)))
        self._sent(1000 * apart_s * np.arange(count), f"requests of {rows} rows", rows=rows)

    def loaded(self, rate_per_s: float, light: Taken) -> tuple[MeasuredWork, float]:
        """Poisson arrivals at a rate; gives the processor time beside the model, and p95 in ms.

        `light` is what the lone requests took. p95 is over all requests but those at the start, as a
        load test has it.
        """
        process = Poisson(rate_per_s)
        times = process.draw(max(20, int(rate_per_s * _LOAD_S)), self.driver.seed).times_ms
        served = self.driver.endpoint.served
        records = self._sent(times, f"load {rate_per_s:.3g}/s", whole=False)
        # The replica has to come to this processor time with the times that the calibration gives.
        points = {size: mean for size, (_, mean) in _pooled(self.readings).items()}
        threads = self.driver.endpoint.threads
        ingress_ms, replica_ms = metrics.work_ms(*self.readings[-1], threads, points)
        if len(served.cpus) == 1 and light.rate_per_s and self.taken.rate_per_s:
            ingress_ms = at_ingress_ms(light, self.taken)
        latencies_ms = records.latencies_ms
        p95_ms = float(np.quantile(latencies_ms[latencies_ms.size // _PARTS :], 0.95))
        return MeasuredWork(ingress_ms, replica_ms), p95_ms

    def _sent(self, times_ms: np.ndarray, name: str, *, rows: int = 1, whole: bool = True) -> Records:
        """Send requests and keep what they took; some must be answered, where `whole` nearly all."""
        seconds = float(times_ms[-1]) / 1000 + 0.01
        before_s = _processor_s(self.driver.endpoint.pids)
        records, sent, (before, after) = self.driver.send(
            times_ms, Spans(0.0, 1, seconds), "binary", f"calibrate, {name}", rows=rows
        )
        place = self.driver.endpoint.served.url
        if before is None or after is None:
            raise UsageError(
                "the server has no metrics at /metrics that the calibration could read",
                place=place,
                hint="calibrate a server that `optcli deploy --target ray` wrote",
            )
        answered = records.answered.mean()
        if not answered or (whole and answered < 1 - _MOST_FAILED):
            lone = "lone " if whole else ""
            failures = ", ".join(f"{cause} {n}" for cause, n in records.failures.items())
            raise UsageError(
                f"of {records.count} {lone}requests the server did not answer: {failures}",
                place=place,
                hint="look into its log",
            )
        self.readings.append((before, after))
        spent_s = _processor_s(self.driver.endpoint.pids) - before_s
        self.taken = self._taken(spent_s, sent)
        return records

    def _taken(self, spent_s: float, sent: Sent) -> Taken:
        """Of the last load; `spent_s` is the processor time of all processes of the server."""
        before, after = self.readings[-1]
        seconds = after.at_s - before.at_s
        here = set(self.driver.endpoint.served.cpus) & set(self.driver.cpus)
        requests, ingress_s = metrics.at_ingress(before, after)
        return Taken(
            rate_per_s=requests / seconds,
            processors=(ingress_s + (sent.cpu_s if here else 0.0)) / seconds,
            others=max(0.0, spent_s - metrics.processor_s(before, after)) / seconds,
        )


def _processor_s(pids: Sequence[int]) -> float:
    """Processor time that these processes have taken so far; those that are gone count nothing."""
    import psutil

    spent = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            known = psutil.Process(pid).cpu_times()
            spent += known.user + known.system
    return spent


def _calibration(driver: Driver, whole: _Phases, overhead_ms: float, work: MeasuredWork) -> Calibration:
    rows, served = _pooled(whole.readings), driver.endpoint.served
    most = driver.endpoint.threads * driver.endpoint.concurrency * (served.instances or 1)
    return Calibration(
        model=served.model,
        measured=datetime.now(UTC).isoformat(timespec="seconds"),
        points_ms={size: mean for size, (_, mean) in rows.items()},
        calls={size: count for size, (count, _) in rows.items()},
        overhead_ms=overhead_ms,
        ingress_ms=work.ingress_ms,
        replica_ms=work.replica_ms,
        own_processors=0 < len(served.model_cpus) <= most,
        cpus=driver.cpus,
    )


def _carried_per_s(driver: Driver, calibration: Calibration) -> float:
    """About what the server carries: its promise where it has one, else its capacity."""
    model, batching = predicting.of_calibration(calibration), _batching(driver)
    rate = capacity_per_s(model.curve, batching.batch, batching.workers)
    rate = min(rate, 1000 / max(model.overhead.ingress_ms, 1e-3))
    if driver.terms.limits_ms:
        rate = predicting.highest(model, batching, Poisson(rate), driver.terms) or rate
    while predicting.unstable(model, batching, rate) and rate > 1:
        rate *= 0.8
    return rate


def _variation(driver: Driver, calibration: Calibration, seen: Mapping[float, float]) -> float:
    """The variation of the ingress' work with which the simulation gives these p95 in ms by rate.

    All of them on the geometric mean: near the capacity p95 hardly depends on this variation.
    """

    def too_short(cv2: float) -> bool:
        model = predicting.of_calibration(calibration.model_copy(update={"ingress_cv2": cv2}))
        off = 0.0
        for rate, p95_ms in seen.items():
            predicted = predicting.predicted(model, _batching(driver), Poisson(rate))
            if predicted.p95_ms is None:
                return False
            off += math.log(predicted.p95_ms / p95_ms)
        return off < 0

    low, high = 0.0, _MOST_CV2
    if not calibration.ingress_ms or not too_short(low):
        return low
    for _ in range(_CV2_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if too_short(middle) else (low, middle)
    return (low + high) / 2


def _batching(driver: Driver) -> Batching:
    known = predicting.batching_of(driver.endpoint.served, driver.endpoint.concurrency)
    assert known is not None
    return known


def _sizes(batch: int) -> Sequence[int]:
    """1, 2, 4 and so on, up to the largest batch."""
    sizes = [2**power for power in range(batch.bit_length()) if 2**power < batch]
    return [*sizes, batch]


def _pooled(readings: Sequence[tuple[Reading, Reading]]) -> dict[int, tuple[int, float]]:
    """Calls and mean milliseconds by rows, over all phases."""
    counts: dict[int, int] = {}
    sums: dict[int, float] = {}
    for before, after in readings:
        for size, (count, mean) in metrics.calls(before, after).items():
            counts[size] = counts.get(size, 0) + count
            sums[size] = sums.get(size, 0.0) + count * mean

    return {
        size: (counts[size], sums[size] / counts[size])
        for size in sorted(counts)
        if counts[size] >= _FEWEST_CALLS
    }
