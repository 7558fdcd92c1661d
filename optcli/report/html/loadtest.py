"""The page of a load test: the answer, the operating curve with what was measured, the figures."""

from __future__ import annotations

from collections.abc import Iterator

from optcli.report import wording
from optcli.report.html import marks, tables
from optcli.report.html.document import document, folded, section
from optcli.report.html.marks import Area
from optcli.report.html.scales import from_zero
from optcli.report.html.tags import Markup, join, tag
from optcli.report.loadtest.rows import (
    about,
    columns,
    failures,
    found,
    priority_columns,
    rows,
    server_columns,
    with_priorities,
    with_server,
)
from optcli.results.loadtest import LoadPoint, LoadTest

_HEIGHT = 340
# A percentile far over the promise would flatten everything below it.
_MOST_OVER = 2.5
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


def loadtest_page(test: LoadTest) -> str:
    """The load test as one HTML file."""
    chip = tables.chip(_OUTCOMES[test.outcome], test.outcome)
    title = tag("div", tag("h1", test.name), chip, class_="title")
    hint = f"{test.served.url}, {test.arrivals} arrivals"
    header = tag("header", title, tag("p", hint, class_="hint"))
    return document(f"{test.name}: optcli loadtest", header, tag("main", *_sections(test)))


def _sections(test: LoadTest) -> Iterator[Markup]:
    kind = "answer" if test.outcome == "accept" else "answer none"
    yield tag("section", tag("p", test.sentence), class_=kind, id="answer")
    if any(_value(point, test.drawn) is not None for point in test.points):
        lead = "Lines are predicted, points measured; filled points keep the promise."
        yield section("Operating curve", lead, _curve(test), id_="curve")
    if test.points:
        table = tables.table_of(columns(test), rows(test), "Loads")
        yield section("Loads", None, table, id_="loads")
    if with_priorities(test):
        lead = "Each priority has its own part of the requests and must keep the promise on its own."
        table = tables.table_of(priority_columns(test), with_priorities(test), "By priority")
        yield section("By priority", lead, table, id_="priorities")
    if with_server(test):
        lead = "Means over the windows, by the server's own metrics."
        table = tables.table_of(server_columns(test), with_server(test), "In the server")
        yield section("In the server", lead, table, id_="server")
    if test.verdicts:
        heads, left = ("verdict", "outcome", "why"), (0, 1, 2)
        cells = [
            (each.name, each.outcome + ("" if each.blocking else " (advice)"), each.reason)
            for each in test.verdicts
        ]
        table = tables.of_texts(heads, cells, "Verdicts", left)
        yield section("Verdicts", None, table, id_="verdicts")
    if found(test):
        yield section("Limit and calibration", None, _named(found(test)), id_="limit")
    for name, lines in (
        ("Not answered", failures(test)),
        ("Notes", [each.text for each in test.notes]),
    ):
        if lines:
            yield section(name, None, tag("ul", *(tag("li", line) for line in lines)))
    words = folded("What the words mean", _named(_GLOSSARY))
    yield section("What was loaded", None, _named(about(test)), words, id_="about")


def _named(pairs: list[tuple[str, str]] | tuple[tuple[str, str], ...]) -> Markup:
    return tag("dl", *(join([tag("dt", name), tag("dd", value)]) for name, value in pairs))


def _curve(test: LoadTest) -> Markup:
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
    top = max(values)
    if limit is not None:
        top = max(limit, min(top, _MOST_OVER * limit))
    x = from_zero(rates, area.left, area.right)
    y = from_zero([top], area.bottom, area.top)
    shapes = marks.axes(area, x, y, "requests a second", f"{test.drawn}, milliseconds")
    if limit is not None:
        shapes += [
            marks.line(area.left, y(limit), area.right, y(limit), "budget"),
            marks.text(area.right, 14, f"promised {limit:g} ms", "end", "budget-name"),
        ]
    for index, line in enumerate(test.curve_ms.values()):
        points = [(x(rate), y(ms)) for rate, ms in line if ms is not None]
        if len(points) > 1:
            shapes.append(marks.series(index, marks.path(points, "curve")))
    own = []
    for point in measured:
        value, at = _value(point, test.drawn) or 0.0, x(point.rate_per_s)
        ends = marks.bounds(getattr(point, f"{test.drawn}_ms"), y)
        if ends is not None:
            own.append(marks.whisker(at, ends, level=False))
        told = (
            f"{wording.number(point.rate_per_s)} a second: {test.drawn} {value:.4g} ms, {point.reason}"
        )
        own.append(
            marks.marker(len(test.curve_ms), at, y(value), told, hollow=point.outcome != "accept")
        )
    shapes.append(marks.series(len(test.curve_ms), *own))
    return marks.picture(width, _HEIGHT, name, *shapes)


def _value(point: LoadPoint, name: str) -> float | None:
    estimate = getattr(point, f"{name}_ms")
    return None if estimate is None else float(estimate.value)
