"""A load test: the answer, the loads, the operating curve and what to know of them; and a canary."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from optcli.errors import counted
from optcli.report import junit as junit_xml
from optcli.report import wording
from optcli.report.html import marks
from optcli.report.html.marks import Area, Dot, from_zero
from optcli.report.html.tags import Markup, join
from optcli.report.terminal import figures
from optcli.results import Estimate
from optcli.results.document import (
    Cell,
    Chart,
    Column,
    Document,
    Items,
    Names,
    Section,
    Table,
    table_of_texts,
)
from optcli.results.loadtest import Canary, LoadPoint, LoadTest

_HEIGHT = 340
_OUTCOMES = {
    "accept": "keeps the promise",
    "reject": "breaks the promise",
    "inconclusive": "cannot tell",
}
_GLOSSARY = (
    ("latency", "from the planned time of a request to its whole answer"),
    ("[low, high]", "the 95 % interval over the windows"),
    ("good", "right answers per second that met the promised latency"),
    ("failed", "the share of requests that were not answered"),
    ("by the plan", "the simulation with the curve t(B) of the plan"),
    ("by the calibration", "the simulation with the curve that the running server showed"),
    ("grows", "the queue grows from beginning to end: more requests arrive than are answered"),
)
# What an outcome is called beside a rate.
_WORDS = {"accept": "kept", "reject": "BROKEN", "inconclusive": "cannot tell"}
_STAGES = ("parse", "queue", "batch_wait", "compute", "post")


def document(test: LoadTest) -> Document:
    """For every kind of reader."""
    took = wording.seconds(test.started, test.finished)
    return Document(
        title=f"optcli loadtest: {test.name}",
        label=_OUTCOMES[test.outcome],
        outcome=test.outcome,
        answer=test.sentence,
        sections=list(_sections(test)),
        footer=[] if took is None else [f"Took {wording.duration(took)}."],
    )


def _sections(test: LoadTest) -> Iterator[Section]:
    yield Section("What was loaded", [Names(_about(test))])
    yield Section(
        "Operating curve",
        [Chart(lambda: curve(test))],
        "Lines are predicted, points measured; filled points keep the promise.",
    )
    yield Section("Loads", [Table(_columns(test), test.points)])
    yield Section(
        "In the server",
        [Table(_server_columns(test), [point for point in test.points if point.server is not None])],
        "Means over the windows, by the server's own metrics.",
    )
    yield Section("Limit and calibration", [Names(_results(test))])
    verdicts = [
        f"{each.name}: {each.outcome}{'' if each.blocking else ' (advice)'}, {each.reason}"
        for each in test.verdicts
        if each.outcome != "accept" or not each.blocking
    ]
    yield Section("Verdicts", [Items(verdicts)])
    yield Section("Not answered", [Items(failures(test))])
    yield Section("Notes", [Items([each.text for each in test.notes])])
    yield Section("What the words mean", [Names(_GLOSSARY)], folded=True, on_pages=True)


def junit(test: LoadTest) -> str:
    """JUnit XML: one test case for each verdict; inconclusive ones are skipped."""
    place, loads = f"loadtest.{test.name}", figures(Table(_columns(test), test.points))
    cases = [junit_xml.judged(place, each.name, each, loads, loads) for each in test.verdicts]
    return junit_xml.junit(f"optcli loadtest {test.name}", test.started, cases)


def curve(test: LoadTest) -> Markup:
    """Lines are predicted, points measured; empty where no load has the percentile."""
    if all(_value(point, test.drawn) is None for point in test.points):
        return Markup()
    name = f"{test.drawn} against the rate"
    names = [(index, f"predicted by the {by}") for index, by in enumerate(test.curve_ms)]
    names.append((len(names), "measured"))
    return join([marks.figure(name, lambda width: _drawn(width, test, name)), marks.legend(names)])


def _drawn(width: int, test: LoadTest, name: str) -> Markup:
    area = Area(52, width - 14, 32, _HEIGHT - 40)
    limit = test.slo_ms.get(test.drawn)
    measured = [point for point in test.points if _value(point, test.drawn) is not None]
    rates = [point.rate_per_s for point in test.points]
    rates += [rate for line in test.curve_ms.values() for rate, _ in line]
    values = [_value(point, test.drawn) or 0.0 for point in measured]
    values += [ms for line in test.curve_ms.values() for _, ms in line if ms is not None]
    x = from_zero(rates, area.left, area.right)
    y = marks.up_to_promise(area, values, limit)
    shapes = marks.axes(area, x, y, "requests a second", f"{test.drawn}, milliseconds")
    shapes += marks.promise(area, y, limit)
    for index, line in enumerate(test.curve_ms.values()):
        points = [(x(rate), y(ms)) for rate, ms in line if ms is not None]
        if len(points) > 1:
            shapes.append(marks.series(index, marks.path(points, "curve")))
    loads = [
        Dot(
            point.rate_per_s,
            _value(point, test.drawn) or 0.0,
            f"{wording.number(point.rate_per_s)} a second: {test.drawn}"
            f" {_value(point, test.drawn):.4g} ms, {point.reason}",
            hollow=point.outcome != "accept",
            interval=getattr(point, f"{test.drawn}_ms"),
        )
        for point in measured
    ]
    shapes.append(marks.dots(len(test.curve_ms), x, y, loads, joined=False))
    return marks.picture(width, _HEIGHT, name, *shapes)


def _value(point: LoadPoint, name: str) -> float | None:
    estimate = getattr(point, f"{name}_ms")
    return None if estimate is None else float(estimate.value)


def _columns(test: LoadTest) -> list[Column[LoadPoint]]:
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


def _server_columns(test: LoadTest) -> list[Column[LoadPoint]]:
    """Where the time goes in the server, and what it takes, by its own metrics."""
    known = [point.server for point in test.points if point.server is not None]
    stages = _in_order({name for each in known for name in each.stages_ms})
    processes = sorted({name for each in known for name in each.cpu_cores})
    return [
        Column("rate/s", lambda row: Cell(wording.number(row.rate_per_s))),
        *(_of_server(f"{name.replace('_', ' ')} ms", "stages_ms", name) for name in stages),
        *(_of_server(f"{name} processors", "cpu_cores", name) for name in processes),
    ]


def _about(test: LoadTest) -> list[tuple[str, str]]:
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


def _results(test: LoadTest) -> list[tuple[str, str]]:
    """Names and values of the limit and of the calibration, where there are some."""
    lines = []
    if test.limit is not None:
        one = test.limit
        rate = (
            "none" if one.rate_per_s is None else f"{wording.number(one.rate_per_s)} requests a second"
        )
        sure = "confirmed" if one.confirmed else "not confirmed"
        lines.append(("highest rate", f"{rate}, {sure}"))
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
    return Cell(_WORDS[row.outcome], tone=row.outcome)


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


def _servers(canary: Canary) -> Iterator[tuple[str, str, str]]:
    """Names and values of both servers."""
    first, second = canary.first, canary.second
    yield "server", first.target, second.target
    yield "requests", str(first.requests), str(second.requests)
    yield "not answered", str(first.failed), str(second.failed)
    for name in ("p50", "p95", "p99"):
        yield (
            f"{name} ms",
            _estimate(getattr(first, f"{name}_ms")),
            _estimate(getattr(second, f"{name}_ms")),
        )
    yield "wrong under load", str(first.wrong), str(second.wrong)
    yield "client late ms (p99)", f"{first.lateness_p99_ms:.1f}", f"{second.lateness_p99_ms:.1f}"


def _sent(canary: Canary) -> str:
    """What was sent, in one line."""
    rate = wording.number(canary.rate_per_s)
    return f"{rate} requests a second, {canary.share:.0%} of them to both; {canary.payload}"


def canary_document(canary: Canary) -> Document:
    """Two servers side by side, and the decision."""
    verdicts = [f"{each.name}: {each.outcome}, {each.reason}" for each in canary.verdicts]
    return Document(
        title="optcli loadtest: canary",
        label=canary.decision,
        outcome=canary.outcome,
        answer=canary.sentence,
        hint=_sent(canary),
        sections=[
            Section("Side by side", [_side_by_side(canary)]),
            Section("Verdicts", [Items(verdicts)]),
        ],
    )


def canary_junit(canary: Canary) -> str:
    """JUnit XML: one test case for each verdict."""
    side_by_side = figures(_side_by_side(canary))
    cases = [
        junit_xml.judged("loadtest.canary", each.name, each, side_by_side, side_by_side)
        for each in canary.verdicts
    ]
    return junit_xml.junit("optcli loadtest canary", canary.started, cases)


def _side_by_side(canary: Canary) -> Table[Sequence[str]]:
    return table_of_texts(("figure", "first", "second"), _servers(canary))


def _estimate(estimate: Estimate | None) -> str:
    return wording.NONE if estimate is None else wording.with_interval(estimate, "")
