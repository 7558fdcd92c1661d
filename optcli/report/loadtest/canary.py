"""A canary: two servers side by side, and the decision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from optcli.report import junit as junit_xml
from optcli.report import wording
from optcli.report.terminal import figures
from optcli.results import Estimate
from optcli.results.document import Document, Items, Section, Table, table_of_texts
from optcli.results.loadtest import Canary

HEADS = ("figure", "first", "second")


def rows(canary: Canary) -> Iterator[tuple[str, str, str]]:
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


def about(canary: Canary) -> str:
    """What was sent, in one line."""
    rate = wording.number(canary.rate_per_s)
    return f"{rate} requests a second, {canary.share:.0%} of them to both; {canary.payload}"


def document(canary: Canary) -> Document:
    """Two servers side by side, and the decision."""
    verdicts = [f"{each.name}: {each.outcome}, {each.reason}" for each in canary.verdicts]
    return Document(
        title="optcli loadtest: canary",
        label=canary.decision,
        outcome=canary.outcome,
        answer=canary.sentence,
        hint=about(canary),
        sections=[
            Section("Side by side", [_side_by_side(canary)]),
            Section("Verdicts", [Items(verdicts)]),
        ],
    )


def junit(canary: Canary) -> str:
    """JUnit XML: one test case for each verdict."""
    side_by_side = figures(_side_by_side(canary))
    cases = [
        junit_xml.judged("loadtest.canary", each.name, each, side_by_side, side_by_side)
        for each in canary.verdicts
    ]
    return junit_xml.junit("optcli loadtest canary", canary.started, cases)


def _side_by_side(canary: Canary) -> Table[Sequence[str]]:
    return table_of_texts(HEADS, rows(canary))


def _estimate(estimate: Estimate | None) -> str:
    return wording.NONE if estimate is None else wording.with_interval(estimate, "")
