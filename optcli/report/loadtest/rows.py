"""The rows and columns of a load test's tables, each column defined once for every view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from optcli.errors import counted
from optcli.report import wording
from optcli.results import Estimate
from optcli.results.document import Cell, Column
from optcli.results.loadtest import LoadPoint, LoadTest

# What an outcome is called beside a rate.
WORDS = {"accept": "kept", "reject": "BROKEN", "inconclusive": "cannot tell"}
_STAGES = ("parse", "queue", "batch_wait", "compute", "post")


def columns(test: LoadTest) -> list[Column[LoadPoint]]:
    """The columns that have something to show."""
    shown = [
        Column("load", lambda row: Cell(row.purpose), align="left"),
        Column("rate/s", lambda row: Cell(wording.number(row.rate_per_s))),
        Column("sent/s", lambda row: Cell(wording.number(row.sent_per_s))),
        *(_measured(name) for name in ("p50", "p95", "p99")),
        *(
            _prediction(by, test.drawn)
            for by in ("plan", "calibration")
            if any(one.by == by for point in test.points for one in point.predicted)
        ),
    ]
    shown += [
        Column("good/s", lambda row: Cell(wording.number(row.good_per_s))),
        Column("failed", lambda row: Cell(wording.percent(row.failed_share))),
    ]
    if any(_fill(point) for point in test.points):
        shown.append(Column("mean batch", lambda row: Cell(_fill(row))))
    shown.append(Column("promise", _answer, align="left"))
    return shown


def server_columns(test: LoadTest) -> list[Column[LoadPoint]]:
    """Where the time goes in the server, and what it takes, by its own metrics."""
    known = [point.server for point in test.points if point.server is not None]
    stages = _in_order({name for each in known for name in each.stages_ms})
    processes = sorted({name for each in known for name in each.cpu_cores})
    return [
        Column("rate/s", lambda row: Cell(wording.number(row.rate_per_s))),
        *(_of_server(f"{name.replace('_', ' ')} ms", "stages_ms", name) for name in stages),
        *(_of_server(f"{name} processors", "cpu_cores", name) for name in processes),
    ]


def with_server(test: LoadTest) -> list[LoadPoint]:
    """The loads for which the server's own metrics are known."""
    return [point for point in test.points if point.server is not None]


def about(test: LoadTest) -> list[tuple[str, str]]:
    """Names and values of what was loaded, and with what."""
    served = test.served
    lines = [("server", f"{served.model} at {served.url}")]
    if served.folder:
        lines.append(("bundle", served.folder))
    if served.batch is not None:
        how = {
            "sealed": "closed by time, also while the model is busy",
            "oldest-age": "sent when the oldest request has waited long enough",
        }
        semantics = f", {how[served.semantics]}" if served.semantics else ""
        lines.append(
            (
                "batches",
                f"at most {served.batch}, wait {served.wait_ms or 0:g} ms{semantics};"
                f" {counted(served.instances or 0, 'instance')}",
            )
        )
    promise = " and ".join(f"{name} <= {limit:g} ms" for name, limit in test.slo_ms.items())
    lines.append(("promise", f"{promise or 'no latency'}, at most {100 * test.error_budget:g} % fail"))
    if test.promised_per_s is not None:
        lines.append(("promised rate", f"{wording.number(test.promised_per_s)} requests a second"))
    lines += [("arrivals", f"{test.arrivals}, seed {test.seed}"), ("sent", test.payload)]
    if served.model_cpus:
        own, others = (", ".join(map(str, each)) for each in (served.model_cpus, served.cpus))
        lines.append(("processors", f"the model's replicas {own}, the ingress and Ray {others}"))
    if test.points:
        cpus = ", ".join(map(str, test.points[-1].client.cpus))
        late = max(point.client.lateness_p99_ms for point in test.points)
        lines.append(
            (
                "client",
                f"a process of its own on processors {cpus or 'any'}, at most {late:.1f} ms late (p99)",
            )
        )
    return lines


def found(test: LoadTest) -> list[tuple[str, str]]:
    """Names and values of the limit and of the calibration, where there are some."""
    lines = []
    if test.limit is not None:
        one = test.limit
        kept = (
            "none" if one.rate_per_s is None else f"{wording.number(one.rate_per_s)} requests a second"
        )
        sure = "confirmed" if one.confirmed else "not confirmed"
        lines.append(("highest rate", f"{kept}, {sure}"))
        if one.broken_per_s is not None:
            lines.append(("lowest broken", f"{wording.number(one.broken_per_s)} requests a second"))
        lines += [
            (f"predicted by the {by}", f"{wording.number(rate)} requests a second")
            for by, rate in one.predicted_per_s.items()
        ]
    if test.calibration is not None:
        known = test.calibration
        curve = ", ".join(f"{size}: {ms:.4g} ms" for size, ms in sorted(known.points_ms.items()))
        lines.append(("calibrated t(B)", curve))
        lines.append(("calibrated overhead", f"{known.overhead_ms:.4g} ms; taken {known.measured}"))
        if known.ingress_ms or known.replica_ms:
            work = f"{known.ingress_ms:.3g} ms at the ingress, {known.replica_ms:.3g} ms in the replica"
            lines.append(("processor time per request", f"{work}, without the model"))
    return lines


def failures(test: LoadTest) -> list[str]:
    """What became of requests that were not answered, by rate."""
    return [
        f"{wording.number(point.rate_per_s)}/s: {_causes(point.failures)}"
        for point in test.points
        if point.failures
    ]


def _measured(name: str) -> Column[Any]:
    """A percentile with its interval."""

    def cell(row: LoadPoint) -> Cell:
        estimate: Estimate | None = getattr(row, f"{name}_ms")
        if estimate is None:
            return Cell(wording.NONE, why="too few requests")
        return Cell(wording.number(estimate.value), wording.interval(estimate))

    return Column(f"{name} ms", cell)


def _prediction(by: str, name: str) -> Column[Any]:
    """A percentile as it was predicted."""

    def cell(row: LoadPoint) -> Cell:
        one = next((each for each in row.predicted if each.by == by), None)
        if one is None:
            return Cell(wording.NONE, why="nothing predicts it")
        if one.grows:
            return Cell("grows", why="the simulated queue grows without bound")
        return Cell(wording.number(getattr(one, f"{name}_ms") or 0.0))

    return Column(f"{name} by the {by}", cell)


def _of_server(heading: str, part: str, name: str) -> Column[LoadPoint]:
    """One of the server's figures: a part of `ServerFigures`, and the name of the entry in it."""

    def cell(row: LoadPoint) -> Cell:
        value = getattr(row.server, part).get(name)
        if value is None:
            return Cell(wording.NONE, why="the server does not say")
        return Cell(wording.number(value))

    return Column(heading, cell)


def _answer(row: LoadPoint) -> Cell:
    return Cell(WORDS[row.outcome], tone=row.outcome)


def _causes(failures: Mapping[str, int]) -> str:
    return ", ".join(f"{cause} {count}" for cause, count in failures.items())


def _fill(point: LoadPoint) -> str:
    if point.server is None or point.server.batch_rows is None:
        return ""
    fill = "" if point.server.batch_fill is None else f" ({point.server.batch_fill:.0%})"
    return f"{point.server.batch_rows:.3g}{fill}"


def _in_order(names: set[str]) -> Sequence[str]:
    known = [name for name in _STAGES if name in names]
    return [*known, *sorted(names - set(known))]
