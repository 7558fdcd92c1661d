"""A document in a terminal, and as text for pipes and for terminals without colours."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from optcli.results.document import (
    Chart,
    Code,
    Column,
    Document,
    Items,
    Layout,
    Names,
    Part,
    R,
    Section,
    Table,
)

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table as Grid
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
    return _Shown(document)


def text(document: Document, width: int | None = None) -> str:
    """The same as plain text. Without a width, as for a pipe, every row and sentence is one line."""
    from rich.console import Console

    stream = io.StringIO()
    console = Console(
        file=stream, width=width or UNBOUNDED, color_system=None, force_terminal=False, highlight=False
    )
    console.print(renderable(document))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def figures(table: Table[R]) -> str:
    """A table as aligned lines, for JUnit and logs."""
    aligned = []
    for column in table.columns:
        cells = [column.heading(), *(column.text(row) for row in table.rows)]
        width = max(map(len, cells))
        aligned.append([cell.ljust(width) if column.left else cell.rjust(width) for cell in cells])
    return "\n".join("  ".join(line).rstrip() for line in zip(*aligned, strict=True))


class _Shown:
    """A document whose tables are laid out for the width that there is."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._layout = Layout.ONE_LINE

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        document = self._document
        self._layout = _layout(list(_stackable(document.sections)), console, options)
        yield Text(document.heading, style="bold")
        if document.hint:
            yield Text(document.hint)
        for section in document.sections:
            yield from self._section(section)
        if document.footer:
            yield Text()
            yield from (Text(line, style="dim") for line in document.footer)
        tone = document.outcome if document.tone is None else document.tone
        if document.answer:
            yield from (Text(), Text(document.answer, style=f"bold {STYLES[tone]}"))
        yield from map(Text, document.reasons)

    def _section(self, section: Section) -> Iterator[RenderableType]:
        from rich.text import Text

        shown = [shown for part in section.parts for shown in self._part(part)]
        if shown and not section.on_pages:
            yield Text()
            if section.name:
                yield Text(section.name, style=STYLES[section.tone] or "bold")
            yield from shown

    def _part(self, part: Part) -> Iterator[RenderableType]:
        from rich.padding import Padding
        from rich.text import Text

        if isinstance(part, Section):
            yield from self._section(part)
        elif isinstance(part, Table) and part.rows:
            yield _grid(part, self._layout if _can_stack(part) else Layout.ONE_LINE)
        elif isinstance(part, Names) and part.rows:
            shown = [
                ("" if name == before else name, value)
                for (before, _), (name, value) in zip([("", ""), *part.rows], part.rows, strict=False)
            ]
            yield from _pairs(shown)
        elif isinstance(part, Items):
            yield from (Padding(Text(line), (0, 0, 0, 2), expand=False) for line in part.lines)
        elif isinstance(part, Code | Chart):
            lines = part.lines if isinstance(part, Chart) else part.text.splitlines()
            yield from (Text(line, no_wrap=True, overflow="ignore") for line in lines)


def _pairs(rows: Sequence[tuple[str, str]]) -> Iterator[RenderableType]:
    """Names and values; a value that is wider than the terminal goes on below its beginning."""
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(Text(name), Text(value))
    yield grid


def _stackable(parts: Iterable[Part]) -> Iterator[Table[Any]]:
    """The tables that a terminal shows and whose columns may stand below each other."""
    for part in parts:
        if isinstance(part, Section) and not part.on_pages:
            yield from _stackable(part.parts)
        elif isinstance(part, Table) and part.rows and _can_stack(part):
            yield part


def _can_stack(table: Table[Any]) -> bool:
    return any(column.below for column in table.columns)


def _layout(tables: Sequence[Table[Any]], console: Console, options: ConsoleOptions) -> Layout:
    """The layout with fewest lines that fits all of them."""
    from rich.measure import Measurement

    unbounded = options.update(max_width=UNBOUNDED)
    for layout in Layout:
        grids = (_grid(each, layout) for each in tables)
        widths = (Measurement.get(console, unbounded, grid).maximum for grid in grids)
        if max(widths, default=0) <= options.max_width:
            return layout
    return Layout.NARROW


def _grid(table: Table[R], layout: Layout) -> Grid:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table as Grid
    from rich.text import Text

    stacks = stacked(table.columns, layout) if _can_stack(table) else [[[c]] for c in table.columns]
    cells = [[_cell(stack, row, layout) for stack in stacks] for row in table.rows]
    is_deep = any(len(stack) > 1 for stack in stacks)  # then rows are set apart
    grid = Grid(
        box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), leading=int(is_deep)
    )
    for stack in stacks:
        left = stack[0][0].left
        heading = "\n".join(", ".join(each.heading(layout) for each in line) for line in stack)
        settings: dict[str, Any] = {"justify": "left" if left else "right", "no_wrap": not left}
        grid.add_column(Text(heading), overflow="fold", **settings)
    before = ""
    for name, *others in cells:
        first = name.plain.partition("\n")[0]
        name.stylize("bold", 0, len(first))
        grid.add_row(Text() if name.plain == before else name, *others)
        before = name.plain
    return grid


def _cell(stack: Sequence[Sequence[Column[R]]], row: R, layout: Layout) -> Text:
    """The figures of a stack, a line each; the first counts most."""
    from rich.text import Text

    cell = Text("\n".join(", ".join(each.text(row, layout) for each in line) for line in stack))
    first, more, _ = cell.plain.partition("\n")
    if more:
        cell.stylize("dim", len(first))
    cell.stylize(STYLES[stack[0][0].cell(row).tone])
    return cell


def stacked(columns: Sequence[Column[R]], layout: Layout) -> list[list[list[Column[R]]]]:
    """Which columns share one in a layout: for each, its lines; for each line, who shares it.

    A column stands below the first of those that it names in which a line is left. What it names may
    stand below another itself: then they share that line. What stands below a column to its right
    comes after all others.
    """
    stacks: dict[str, list[list[Column[R]]]] = {}
    lines: dict[str, list[Column[R]]] = {}
    names = [column.name for column in columns]

    def waits(column: Column[R]) -> bool:
        return any(name in names[names.index(column.name) :] for name in column.above(layout))

    for column in sorted(columns, key=waits):
        line = [column]
        for name in column.above(layout):
            if name in stacks and len(stacks[name]) < layout.lines:
                stacks[name].append(line)
                break
            if name in lines and name not in stacks:
                line = lines[name]
                line.append(column)
                break
        else:
            stacks[column.name] = [line]
        lines[column.name] = line
    return [stacks[name] for name in names if name in stacks]
