"""A comparison for the terminal, for a pipe and as Markdown."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from optcli.report.changes.model import Comparison
from optcli.report.changes.rows import HEADS, MEANING, remarks, rows, title
from optcli.report.markdown import escaped, row_of

if TYPE_CHECKING:
    from rich.console import RenderableType

_UNBOUNDED = 10_000
_STYLES = {"faster": "green", "slower": "red", "no": "dim", "same": "dim", "not": "yellow"}


def table(comparisons: Sequence[Comparison]) -> RenderableType:
    """Renderables for rich: a table for each comparison, what else differs below it."""
    from rich.console import Group

    return Group(*(part for each in comparisons for part in _parts(each)))


def text(comparisons: Sequence[Comparison]) -> str:
    """Plain text in which every row and remark is one line."""
    from rich.console import Console

    stream = io.StringIO()
    console = Console(
        file=stream, width=_UNBOUNDED, color_system=None, force_terminal=False, highlight=False
    )
    console.print(table(comparisons))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def _parts(comparison: Comparison) -> Iterator[RenderableType]:
    from rich import box
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    yield Text(title(comparison), style="bold")
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    for head in HEADS:
        left = head in ("variant", "", "size", "accuracy")
        made.add_column(Text(head), justify="left" if left else "right", overflow="fold")
    for row in rows(comparison):
        cells = [Text(cell) for cell in row.cells]
        cells[HEADS.index("")].stylize(_STYLES.get(row.outcome.split(" ")[0], ""))
        made.add_row(*cells)
    yield made
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
    yield row_of(["variant", "batch", "p50 ms", "change", "verdict", "p95", "size", "accuracy"])
    yield row_of(["---", "---:", "---:", "---:", "---", "---:", "---", "---"])
    yield from (row_of([escaped(cell) for cell in row.cells]) for row in rows(comparison))
    for name, lines in remarks(comparison):
        yield from ("", f"{name}:", "")
        yield from (f"- {escaped(line)}" for line in lines)
    yield from ("", f"_{escaped(MEANING)}_", "")
