"""The gate's answer as a comment of a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from optcli.report.gate.changes import lines, why_chosen
from optcli.report.gate.rows import COLUMNS, causes, doubts, rows
from optcli.report.markdown_text import escaped, items, table_of
from optcli.results.gate import GateReport

_HEADINGS = {"accept": "passed", "reject": "FAILED", "inconclusive": "could not tell"}
# Lets a bot find its own comment again and change it.
MARK = "<!-- optcli gate -->"


def markdown(report: GateReport) -> str:
    """A GitHub-flavoured Markdown document: the answer first, then the table, then the reasons."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: GateReport) -> Iterator[str]:
    yield MARK
    yield f"## optcli gate {_HEADINGS[report.outcome]}: {escaped(report.recipe.name)}"
    yield ""
    yield f"**{escaped(report.sentence)}**"
    yield ""
    yield from table_of(COLUMNS, rows(report), strong=True)
    yield from items("What the candidate is judged by has changed", lines(report))
    for name, variant in report.variants.items():
        reasons = [each for each in variant.comparisons if each.outcome != "accept"]
        if reasons:
            yield from ("", f"Why `{name}`:", "")
            yield from (f"- {escaped(each.name)}: {escaped(each.reason)}" for each in reasons)
            yield from (f"- {escaped(line)}" for line in causes(variant))
    doubt_lines = list(doubts(report))
    if doubt_lines:
        yield from ("", "<details><summary>Doubts about the measurement</summary>", "")
        yield from (f"- {escaped(line)}" for line in doubt_lines)
        yield from ("", "</details>")
    judged = [f"{name} ({why})" for name, each in report.variants.items() if (why := why_chosen(each))]
    which = f" Judged: {', '.join(judged)}." if judged else ""
    yield from ("", f"_Compared with {escaped(report.baseline)}.{escaped(which)}_")
