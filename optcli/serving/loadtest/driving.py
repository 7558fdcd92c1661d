"""One load after another through the client process: drawn, sent, read and judged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from optcli.errors import UsageError
from optcli.measure.queueing.arrivals import Process
from optcli.observer import Observer
from optcli.results.loadtest import ClientFigures, Encoding, LoadPoint
from optcli.serving.loadtest import metrics, verdicts
from optcli.serving.loadtest.endpoint import Endpoint
from optcli.serving.loadtest.messages import ClientNews, Load, Sent, Setup
from optcli.serving.loadtest.metrics import Reading
from optcli.serving.loadtest.predicting import PredictsOf
from optcli.serving.loadtest.records import QUANTILES, Records, Spans, over_windows, windows_of
from optcli.serving.loadtest.verdicts import LoadTerms
from optcli.workers import Child, spawn

Purpose = Literal["rate", "ramp", "bisect", "confirm", "calibrate"]
_CLIENT = "optcli.serving.loadtest.client:serve"
_ANSWERS = "answers.npz"
_READY_S = 300.0
# A client that says nothing for so long beyond the timeout of its requests has died.
_SILENT_S = 60.0
_MOST_REQUESTS = 5_000_000
# Threads of the client's libraries: it computes nothing that would gain by them.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass
class Driver:
    """The client process and what each load is judged by; `payload` says what is sent."""

    child: Child
    endpoint: Endpoint
    terms: LoadTerms
    scratch: Path
    observer: Observer
    seed: int
    timeout_s: float
    payload: str
    cpus: tuple[int, ...]
    predict: PredictsOf = lambda process: ()
    loads: int = field(default=0)

    def point(
        self,
        process: Process,
        spans: Spans,
        *,
        encoding: Encoding = "binary",
        purpose: Purpose = "rate",
    ) -> LoadPoint:
        """Load the server as a process says, for the settling time and the windows, and judge."""
        served, seed = self.endpoint.served, self.seed + self.loads
        times = drawn(process, spans, seed)
        records, sent, readings = self.send(times, spans, encoding, _named(purpose, process))
        windows = windows_of(records, spans)
        seconds = spans.windows * spans.window_s
        shown = [each.window(spans.window_s) for each in windows]
        inside = records.planned_within(1000 * spans.settle_s, 1000 * spans.seconds)
        percentiles = {name: over_windows(windows, name) for name in QUANTILES}
        lateness = inside.lateness_p99_ms
        client = ClientFigures(
            lateness_p99_ms=lateness,
            lateness_limit_ms=self.terms.late_ms,
            saturated=lateness > self.terms.late_ms,
            cpu_cores=sent.cpu_s / sent.seconds,
            cpus=self.cpus,
            bytes_sent=sent.bytes_sent,
            bytes_received=sent.bytes_received,
            most_in_flight=sent.most_in_flight,
        )
        answer = verdicts.judged(
            shown,
            percentiles,
            self.terms,
            client,
            short=spans.is_short(process.rate_per_s),
            wrong=sent.wrong,
            checked=sent.checked,
            wrong_example=sent.wrong_example,
            failures=inside.failures,
        )
        return LoadPoint(
            rate_per_s=process.rate_per_s,
            purpose=purpose,
            encoding=encoding,
            seconds=seconds,
            requests=inside.count,
            sent_per_s=_within(records.sent_ms, spans) / seconds,
            answered_per_s=_within(records.finished_ms[records.answered], spans) / seconds,
            good_per_s=inside.good(self.terms.good_ms) / seconds,
            p50_ms=percentiles["p50"],
            p95_ms=percentiles["p95"],
            p99_ms=percentiles["p99"],
            windows=tuple(shown),
            steady=answer.steady,
            grows=answer.grows,
            short=spans.is_short(process.rate_per_s),
            breach=answer.breach,
            failed_share=1 - float(inside.answered.mean()) if inside.count else 0.0,
            failures=inside.failures,
            checked=sent.checked,
            wrong=sent.wrong,
            wrong_example=sent.wrong_example,
            client=client,
            server=metrics.figures(*readings, served.batch),
            predicted=tuple(self.predict(process)),
            outcome=answer.outcome,
            reason=answer.reason,
        )

    def send(
        self,
        times_ms: np.ndarray,
        spans: Spans,
        encoding: Encoding,
        name: str,
        *,
        samples: np.ndarray | None = None,
        rows: int = 1,
    ) -> tuple[Records, Sent, tuple[Reading | None, Reading | None]]:
        """Send requests at these times; gives what came of them, and the server's metrics.

        The metrics are read where the windows begin and where they end. `samples` [requests] says which
        sample each request holds; None: one after the other. Each has `rows` rows.
        """
        self.loads += 1
        times, records = (self.scratch / f"{part}-{self.loads}.np" for part in ("times", "records"))
        times, records = times.with_suffix(".npy"), records.with_suffix(".npz")
        np.save(times, times_ms)
        url = self.endpoint.served.url
        before = metrics.read(url, 0.0, self.endpoint.pids) if spans.settle_s == 0 else None
        after: Reading | None = None
        self.observer.started(name)
        order = None
        if samples is not None:
            order = self.scratch / f"samples-{self.loads}.npy"
            np.save(order, samples)
        answers_file = self.scratch / _ANSWERS if encoding != "image" else None
        self.child.send(Load(times, records, encoding, self.timeout_s, order, rows, answers_file))
        while True:
            news = self.child.receive(ClientNews, self.timeout_s + _SILENT_S)
            if news.sent is not None:
                break
            second = news.second or 0.0
            if before is None and second >= spans.settle_s:
                before = metrics.read(url, second, self.endpoint.pids)
            if after is None and second >= spans.seconds:
                after = metrics.read(url, second, self.endpoint.pids)
            self.observer.progress(name, min(1.0, second / spans.seconds), _live(news))
        after = after or metrics.read(url, news.sent.seconds, self.endpoint.pids)
        result = Records.read(records)
        for file in filter(None, (times, records, order)):
            file.unlink()
        return result, news.sent, (before, after)

    def answers(self, encoding: Encoding, name: str) -> dict[str, np.ndarray]:
        """What answers of tensors are compared with, before any load: arrays [samples, ...] by output.

        Where they are not known, the server is asked for each sample once, one after the other.
        """
        self.send(np.zeros(0), Spans(0.0, 1, 1.0), encoding, name)
        with np.load(self.scratch / _ANSWERS, allow_pickle=False) as archive:
            return dict(archive)


@contextmanager
def driver(
    endpoint: Endpoint,
    setup: Setup,
    terms: LoadTerms,
    scratch: Path,
    observer: Observer,
    *,
    seed: int,
    timeout_s: float,
) -> Iterator[Driver]:
    """Start the client process; it ends with the context. Raises what its first message raises."""
    log = scratch / "client.log"
    with spawn(_CLIENT, setup, log=log, environment=_ONE_THREAD) as child:
        news = child.receive(ClientNews, _READY_S)
        yield Driver(
            child=child,
            endpoint=endpoint,
            terms=terms,
            scratch=scratch,
            observer=observer,
            seed=seed,
            timeout_s=timeout_s,
            payload=news.ready or "",
            cpus=news.cpus,
        )


def drawn(process: Process, spans: Spans, seed: int) -> np.ndarray:
    """Planned times of requests for all of the spans, in milliseconds. Raises `UsageError`."""
    end_ms = 1000 * spans.seconds
    count = int(process.rate_per_s * spans.seconds * 1.2) + 50
    while True:
        if count > _MOST_REQUESTS:
            raise UsageError(
                f"{process.rate_per_s:g} requests a second for {spans.seconds:g} s are too many",
                place="--rate",
                hint=f"ask for at most {_MOST_REQUESTS} requests: a lower rate or fewer seconds",
            )
        times = process.draw(count, seed).times_ms
        if times[-1] >= end_ms:
            arrivals: np.ndarray = times[times < end_ms]
            return arrivals if arrivals.size else np.array([times[0] % end_ms])
        count *= 2


def _within(times_ms: np.ndarray, spans: Spans) -> int:
    inside = (times_ms >= 1000 * spans.settle_s) & (times_ms < 1000 * spans.seconds)
    return int(np.count_nonzero(inside))


def _named(purpose: str, process: Process) -> str:
    return f"{'load' if purpose == 'rate' else purpose} {process.rate_per_s:.4g}/s"


def _live(news: ClientNews) -> str:
    if news.asked:
        return news.asked
    p95 = "no answer yet" if news.p95_ms is None else f"p95 {news.p95_ms:.1f} ms"
    return f"{p95}, {news.answered_per_s:.0f} answers/s, {news.failed} errors"
