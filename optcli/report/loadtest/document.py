"""A load test: the answer, the loads and the operating curve, and what is to be known of them."""

from __future__ import annotations

from collections.abc import Iterator

from optcli.report import junit as junit_xml
from optcli.report import wording
from optcli.report.html import marks
from optcli.report.html.marks import Area, Dot
from optcli.report.html.scales import from_zero
from optcli.report.html.tags import Markup, join
from optcli.report.loadtest.rows import (
    about,
    columns,
    failures,
    found,
    server_columns,
    with_server,
)
from optcli.report.terminal import figures
from optcli.results.document import Document, Items, Names, Picture, Section, Table
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
    yield Section("What was loaded", [Names(about(test))])
    yield Section(
        "Operating curve",
        [Picture(lambda: curve(test))],
        "Lines are predicted, points measured; filled points keep the promise.",
    )
    yield Section("Loads", [Table(columns(test), test.points)])
    yield Section(
        "In the server",
        [Table(server_columns(test), with_server(test))],
        "Means over the windows, by the server's own metrics.",
    )
    yield Section("Limit and calibration", [Names(found(test))])
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
    place, loads = f"loadtest.{test.name}", figures(Table(columns(test), test.points))
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
    top = max(values)
    if limit is not None:
        top = max(limit, min(top, _MOST_OVER * limit))
    x = from_zero(rates, area.left, area.right)
    y = from_zero([top], area.bottom, area.top)
    shapes = marks.axes(area, x, y, "requests a second", f"{test.drawn}, milliseconds")
    if limit is not None:
        shapes += marks.bound(area, y, limit, f"promised {limit:g} ms")
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
