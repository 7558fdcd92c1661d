"""A canary as text, Markdown and JUnit XML: two servers side by side, and the decision."""

from __future__ import annotations

from collections.abc import Iterator

from optcli.report import junit as junit_xml
from optcli.report import wording
from optcli.report.markdown_text import escaped, items, table
from optcli.report.terminal import aligned
from optcli.results import Estimate
from optcli.results.loadtest import Canary

HEADS = ("", "first", "second")


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


def text(canary: Canary) -> str:
    """The whole answer as lines."""
    lines = [
        *aligned([HEADS, *rows(canary)], left=(0,)),
        "",
        about(canary),
        *(f"  - {each.name}: {each.outcome}, {each.reason}" for each in canary.verdicts),
        "",
        canary.sentence,
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def markdown(canary: Canary) -> str:
    """A GitHub-flavoured Markdown document."""
    lines = [
        f"## optcli loadtest: {canary.decision}",
        "",
        f"**{escaped(canary.sentence)}**",
        "",
        *table(HEADS, rows(canary), left=(0,)),
        *items("Verdicts", [f"{each.name}: {each.outcome}, {each.reason}" for each in canary.verdicts]),
        "",
        f"_{escaped(about(canary))}_",
    ]
    return "\n".join(lines) + "\n"


def junit(canary: Canary) -> str:
    """JUnit XML: one test case for each verdict."""
    figures = "\n".join(aligned([HEADS, *rows(canary)], left=(0,)))
    cases = [
        junit_xml.judged("loadtest.canary", each.name, each, figures, figures)
        for each in canary.verdicts
    ]
    return junit_xml.junit("optcli loadtest canary", canary.started, cases)


def _estimate(estimate: Estimate | None) -> str:
    return wording.NONE if estimate is None else wording.with_interval(estimate, "")
