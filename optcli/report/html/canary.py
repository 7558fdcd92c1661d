"""The page of a canary: the decision, both servers side by side, the verdicts."""

from __future__ import annotations

from optcli.report.html import tables
from optcli.report.html.document import document, section
from optcli.report.html.tags import tag
from optcli.report.loadtest.canary import HEADS, about, rows
from optcli.results.loadtest import Canary


def canary_page(canary: Canary) -> str:
    """The canary as one HTML file."""
    chip = tables.chip(canary.decision, canary.outcome)
    title = tag("div", tag("h1", "Canary"), chip, class_="title")
    header = tag("header", title, tag("p", about(canary), class_="hint"))
    kind = "answer" if canary.outcome == "accept" else "answer none"
    verdicts = [(each.name, each.outcome, each.reason) for each in canary.verdicts]
    body = (
        tag("section", tag("p", canary.sentence), class_=kind, id="answer"),
        section("Side by side", None, tables.of_texts(HEADS, rows(canary), "Servers", (0,))),
        section(
            "Verdicts",
            None,
            tables.of_texts(("verdict", "outcome", "why"), verdicts, "Verdicts", (0, 1, 2)),
        ),
    )
    return document("optcli loadtest: canary", header, tag("main", *body))
