"""A comparison for the terminal, for a pipe and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from optcli.report.changes import columns
from optcli.report.changes.model import Comparison
from optcli.report.changes.rows import MEANING, remarks, rows, title
from optcli.report.column import Layout, of_table
from optcli.report.markdown_text import escaped, items, table_of
from optcli.report.plain_text import plain
from optcli.report.table import coloured

if TYPE_CHECKING:
    from rich.console import JustifyMethod, RenderableType


def table(comparisons: Sequence[Comparison]) -> RenderableType:
    """Renderables for rich: a table for each comparison, what else differs below it."""
    from rich.console import Group

    return Group(*(part for each in comparisons for part in _parts(each)))


def text(comparisons: Sequence[Comparison]) -> str:
    """Plain text in which every row and remark is one line."""
    return plain(table(comparisons))


def _parts(comparison: Comparison) -> Iterator[RenderableType]:
    from rich import box
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    yield Text(title(comparison), style="bold")
    shown = of_table(columns.COLUMNS)
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for column in shown:
        justify: JustifyMethod = "left" if column.left else "right"
        grid.add_column(Text(column.heading(Layout.TWO_LINES)), justify=justify, overflow="fold")
    for row in rows(comparison):
        grid.add_row(*(coloured(column.cell(row)) for column in shown))
    yield grid
    for name, lines in remarks(comparison):
        yield Text(name, style="yellow" if name == "Not comparable" else "bold")
        yield from (Padding(Text(line), (0, 0, 0, 2), expand=False) for line in lines)
        yield Text()
    yield Text(MEANING, style="dim")
    yield Text()


def markdown(comparisons: Sequence[Comparison]) -> str:
    """A GitHub-flavoured document."""
    return "\n".join(line for each in comparisons for line in _lines(each)) + "\n"


def _lines(comparison: Comparison) -> Iterator[str]:
    yield f"## {escaped(title(comparison))}"
    yield ""
    yield from table_of(of_table(columns.COLUMNS), rows(comparison))
    for name, lines in remarks(comparison):
        yield from items(name, lines)
    yield from ("", f"_{escaped(MEANING)}_", "")
