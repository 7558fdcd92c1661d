"""A load test: the answer, the loads and the operating curve, and what is to be known of them."""

from __future__ import annotations

from collections.abc import Iterator

from optcli.document import Document, Items, Names, Picture, Section, Table
from optcli.report import junit as junit_xml
from optcli.report import wording
from optcli.report.loadtest.curve import curve
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
from optcli.report.terminal import figures
from optcli.results.loadtest import LoadTest

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
    yield Section("Loads", [Table(columns(test), rows(test))])
    yield Section(
        "By priority",
        [Table(priority_columns(test), with_priorities(test))],
        "Each priority has its own part of the requests and must keep the promise on its own.",
    )
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
    place, loads = f"loadtest.{test.name}", figures(Table(columns(test), rows(test)))
    cases = [junit_xml.judged(place, each.name, each, loads, loads) for each in test.verdicts]
    return junit_xml.junit(f"optcli loadtest {test.name}", test.started, cases)
