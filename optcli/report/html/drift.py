"""The page of a drift: the answer, the inputs, their channels, what drifted."""

from __future__ import annotations

from optcli.report.html import tables
from optcli.report.html.document import document, section
from optcli.report.html.tags import tag
from optcli.report.loadtest.drift import CHANNELS, STATISTICS, WORDS, about, channels, statistics
from optcli.results.drift import Drift

_INPUTS = ("input", "answer", "why")


def drift_page(drift: Drift) -> str:
    """The comparison as one HTML file."""
    chip = tables.chip(WORDS[drift.outcome], drift.outcome)
    title = tag("div", tag("h1", f"Inputs of {drift.model}"), chip, class_="title")
    lines = "; ".join(f"{name}: {value}" for name, value in about(drift)[1:])
    header = tag("header", title, tag("p", lines, class_="hint"))
    kind = "answer" if drift.outcome == "accept" else "answer none"
    inputs = [(each.name, WORDS[each.outcome], each.reason) for each in drift.inputs]
    body = [
        tag("section", tag("p", drift.sentence), class_=kind, id="answer"),
        section("Inputs", None, tables.of_texts(_INPUTS, inputs, "Inputs", (0, 1, 2))),
    ]
    if rows := channels(drift):
        body.append(section("Channels", None, tables.of_texts(CHANNELS, rows, "Channels", (0,))))
    if rows := statistics(drift):
        shown = tables.of_texts(STATISTICS, rows, "What drifted", (0, 1, 2))
        body.append(section("What drifted", None, shown))
    if drift.notes:
        notes = tag("ul", *(tag("li", note) for note in drift.notes))
        body.append(section("Notes", None, notes))
    return document(f"optcli loadtest --drift: {drift.model}", header, tag("main", *body))
