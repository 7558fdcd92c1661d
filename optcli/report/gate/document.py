"""The gate's answer: a table, what explains a failure, and what to distrust."""

from __future__ import annotations

from collections.abc import Iterator

from optcli.report import wording
from optcli.report.gate.changes import lines, why_chosen
from optcli.report.gate.rows import COLUMNS, causes, doubts, rows
from optcli.results.document import Document, Items, Section, Table
from optcli.results.gate import GateReport

_HEADINGS = {"accept": "passed", "reject": "FAILED", "inconclusive": "could not tell"}
# Lets a bot find its own comment again and change it.
MARK = "optcli gate"


def document(report: GateReport) -> Document:
    """For a terminal, and for the comment of a pull request."""
    return Document(
        title=f"optcli gate {_HEADINGS[report.outcome]}: {report.recipe.name}",
        sections=list(_sections(report)),
        answer=report.sentence,
        outcome=report.outcome,
        footer=[_compared(report)],
        mark=MARK,
    )


def _sections(report: GateReport) -> Iterator[Section]:
    yield Section("", [Table(COLUMNS, rows(report))])
    yield Section(
        "What the candidate is judged by has changed", [Items(lines(report))], tone="inconclusive"
    )
    for name, variant in report.variants.items():
        reasons = [
            f"{each.name}: {each.reason}" for each in variant.comparisons if each.outcome != "accept"
        ]
        if reasons:
            yield Section(f"Why {name}", [Items([*reasons, *causes(variant)])], tone="inconclusive")
    yield Section(
        "Doubts about the measurement", [Items(list(doubts(report)))], tone="inconclusive", folded=True
    )


def _compared(report: GateReport) -> str:
    """With what, which variants are judged and why, and how long it took."""
    judged = [f"{name} ({why})" for name, each in report.variants.items() if (why := why_chosen(each))]
    which = f" Judged: {', '.join(judged)}." if judged else ""
    took = wording.seconds(report.started, report.finished)
    time = "" if took is None else f" Took {wording.duration(took)}."
    return f"Compared with {report.baseline}.{which}{time}"
