"""The gate's answer in the terminal: a table, then what explains a failure, then the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optcli.report import wording
from optcli.report.gate.changes import lines, why_chosen
from optcli.report.gate.rows import COLUMNS, causes, doubts, rows
from optcli.report.plain_text import plain
from optcli.report.table import STYLES, coloured
from optcli.results.gate import GateReport

if TYPE_CHECKING:
    from rich.console import JustifyMethod, RenderableType


def table(report: GateReport) -> RenderableType:
    """A renderable for rich."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = [
        Text(f"{report.recipe.name} against {report.baseline}", style="bold"),
        _table(report),
        Text(),
        *(
            Text(f"{name} is judged because it is {why_chosen(variant)}.", style="dim")
            for name, variant in report.variants.items()
            if variant.chosen
        ),
        Text(),
    ]
    changed = lines(report)
    if changed:
        parts.append(Text("What the candidate is judged by has changed", style="yellow"))
        parts += [*(Text(f"  {line}") for line in changed), Text()]
    for name, variant in report.variants.items():
        reasons = [each for each in variant.comparisons if each.outcome != "accept"]
        if reasons:
            parts.append(Text(f"Why {name}", style="yellow"))
            parts += [Text(f"  {each.name}: {each.reason}") for each in reasons]
            parts += [Text(f"  {line}") for line in causes(variant)]
            parts.append(Text())
    doubt_lines = list(doubts(report))
    if doubt_lines:
        parts += [Text("Doubts about the measurement", style="yellow")]
        parts += [*(Text(f"  {line}") for line in doubt_lines), Text()]
    parts.append(Text(report.sentence, style=f"bold {STYLES[report.outcome]}"))
    took = wording.seconds(report.started, report.finished)
    if took is not None:
        parts.append(Text(f"Took {wording.duration(took)}.", style="dim"))
    return Group(*parts)


def text(report: GateReport, width: int | None = None) -> str:
    """The same as plain text. Without a width, as for a pipe, every row and note is one line."""
    return plain(table(report), width)


def _table(report: GateReport) -> RenderableType:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column in COLUMNS:
        justify: JustifyMethod = "left" if column.left else "right"
        grid.add_column(column.heading(), justify=justify, overflow="fold")
    before = None
    for row in rows(report):
        variant, *others = (column.cell(row) for column in COLUMNS)
        name = Text(variant.value if row.variant != before else "", style="bold")
        grid.add_row(name, *map(coloured, others))
        before = row.variant
    return grid
