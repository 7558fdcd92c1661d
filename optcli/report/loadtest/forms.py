"""A load test as text for a terminal, as Markdown, and as JUnit XML."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from optcli.document import Column
from optcli.report import junit as junit_xml
from optcli.report import wording
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
from optcli.report.markdown_text import escaped, items, table_of
from optcli.report.terminal import aligned
from optcli.results.loadtest import LoadTest

T = TypeVar("T")


def text(test: LoadTest) -> str:
    """The whole answer as lines."""
    return "\n".join(line.rstrip() for line in _lines(test)) + "\n"


def _lines(test: LoadTest) -> Iterator[str]:
    yield from aligned(about(test), left=(0, 1))
    if test.points:
        yield ""
        yield from _table(test)
    if with_priorities(test):
        yield ""
        yield "By priority"
        yield from _aligned(priority_columns(test), with_priorities(test))
    if with_server(test):
        yield ""
        yield "In the server, by its own metrics"
        yield from _server(test)
    if found(test):
        yield ""
        yield from aligned(found(test), left=(0, 1))
    for title, lines in _sections(test):
        yield ""
        yield title
        yield from (f"  - {line}" for line in lines)
    yield ""
    yield test.sentence
    took = wording.seconds(test.started, test.finished)
    if took is not None:
        yield f"Took {wording.duration(took)}."


def markdown(test: LoadTest) -> str:
    """A GitHub-flavoured Markdown document: the answer, the loads, what is to be known of them."""
    return "\n".join(_markdown(test)) + "\n"


def _markdown(test: LoadTest) -> Iterator[str]:
    yield f"## optcli loadtest: {escaped(test.name)}"
    yield ""
    yield f"**{escaped(test.sentence)}**"
    if test.points:
        yield ""
        yield from table_of(columns(test), rows(test), strong=True)
    if with_priorities(test):
        yield ""
        yield from table_of(priority_columns(test), with_priorities(test), strong=True)
    if with_server(test):
        yield ""
        yield from table_of(server_columns(test), with_server(test))
    yield from items("What was loaded", [f"{name}: {value}" for name, value in about(test)])
    yield from items("Limit and calibration", [f"{name}: {value}" for name, value in found(test)])
    for title, lines in _sections(test):
        yield from items(title, lines)


def junit(test: LoadTest) -> str:
    """JUnit XML: one test case for each verdict; inconclusive ones are skipped."""
    place = f"loadtest.{test.name}"
    cases = [
        junit_xml.judged(place, each.name, each, _figures(test), _figures(test))
        for each in test.verdicts
    ]
    return junit_xml.junit(f"optcli loadtest {test.name}", test.started, cases)


def _figures(test: LoadTest) -> str:
    return "\n".join(_table(test)) if test.points else ""


def _table(test: LoadTest) -> Iterator[str]:
    return _aligned(columns(test), rows(test))


def _server(test: LoadTest) -> Iterator[str]:
    return _aligned(server_columns(test), with_server(test))


def _aligned(shown: list[Column[T]], of: list[T]) -> Iterator[str]:
    cells = [[column.heading() for column in shown]]
    cells += [[column.text(row) for column in shown] for row in of]
    left = [place for place, column in enumerate(shown) if column.left]
    return aligned(cells, left=left)


def _sections(test: LoadTest) -> Iterator[tuple[str, list[str]]]:
    verdicts = [
        f"{each.name}: {each.reason}" + ("" if each.blocking else " (advice)")
        for each in test.verdicts
        if each.outcome != "accept" or not each.blocking
    ]
    for title, lines in (
        ("Verdicts", verdicts),
        ("Not answered", failures(test)),
        ("Notes", [each.text for each in test.notes]),
    ):
        if lines:
            yield title, lines
