"""A document in a terminal, and as text for pipes and for terminals without colours."""

from __future__ import annotations

import io
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from optcli.results.document import Cell, Column, Document, Items, Names, Part, R, Section, Table

if TYPE_CHECKING:
    from rich.console import JustifyMethod, RenderableType
    from rich.text import Text

# For pipes: wide enough that nothing is ever broken.
UNBOUNDED = 10_000
# How the tones of cells are shown.
STYLES = {
    "accept": "green",
    "baseline": "green",
    "inconclusive": "yellow",
    "reject": "red",
    "none": "dim",
    "": "",
}


def renderable(document: Document) -> RenderableType:
    """The document for rich: its answer comes last, where people look."""
    from rich.console import Group

    return Group(*_blocks(document))


def text(document: Document, width: int | None = None) -> str:
    """The same as plain text. Without a width, as for a pipe, every row and sentence is one line."""
    return plain(renderable(document), width)


def plain(renderable: RenderableType, width: int | None = None) -> str:
    """What rich shows, as plain text. Without a width every row and note is one line."""
    from rich.console import Console

    stream = io.StringIO()
    console = Console(
        file=stream, width=width or UNBOUNDED, color_system=None, force_terminal=False, highlight=False
    )
    console.print(renderable)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def aligned(rows: Sequence[Sequence[str]], left: Collection[int] = ()) -> Iterator[str]:
    """A line per row, the columns as wide as their widest cell; `left` are those that stand left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )


def coloured(cell: Cell) -> Text:
    """A cell in the colour of its tone."""
    from rich.text import Text

    text = Text(cell.full)
    text.stylize(STYLES[cell.tone])
    return text


def _blocks(document: Document) -> Iterator[RenderableType]:
    from rich.text import Text

    yield Text(document.heading, style="bold")
    if document.hint:
        yield Text(document.hint)
    for section in document.sections:
        yield from _section(section)
    yield Text()
    yield from (Text(line, style="dim") for line in document.footer)
    if document.answer:
        yield Text(document.answer, style=f"bold {STYLES[document.outcome]}")


def _section(section: Section) -> Iterator[RenderableType]:
    from rich.text import Text

    shown = [shown for part in section.parts for shown in _part(part)]
    if shown and not section.on_pages:
        yield Text()
        if section.name:
            yield Text(section.name, style=STYLES[section.tone] or "bold")
        yield from shown


def _part(part: Part) -> Iterator[RenderableType]:
    from rich.padding import Padding
    from rich.text import Text

    if isinstance(part, Table) and part.rows:
        yield _grid(part)
    elif isinstance(part, Names) and part.rows:
        yield from (Text(line, no_wrap=True, overflow="fold") for line in aligned(part.rows, (0, 1)))
    elif isinstance(part, Items):
        yield from (Padding(Text(line), (0, 0, 0, 2), expand=False) for line in part.lines)


def _grid(table: Table[R]) -> RenderableType:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as Grid

    grid = Grid(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for column in table.columns:
        justify: JustifyMethod = "left" if column.left else "right"
        grid.add_column(column.heading(), justify=justify, overflow="fold")
    before = None
    for row in table.rows:
        name, *others = (column.cell(row) for column in table.columns)
        grid.add_row(_name(name, repeated=name == before), *map(coloured, others))
        before = name
    return grid


def _name(cell: Cell, *, repeated: bool) -> Text:
    """What a row is called; nothing where the row above is called so too."""
    from rich.text import Text

    return Text("") if repeated else Text(cell.full, style="bold")


def figures(table: Table[R]) -> str:
    """A table as aligned lines, for JUnit and logs."""
    columns: Sequence[Column[R]] = table.columns
    cells = [[column.heading() for column in columns]]
    cells += [[column.text(row) for column in columns] for row in table.rows]
    left = [place for place, column in enumerate(columns) if column.left]
    return "\n".join(line.rstrip() for line in aligned(cells, left))
