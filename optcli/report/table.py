"""The report as a table for the terminal, in the widest of four layouts that fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from optcli.report import columns
from optcli.report.by_device import views
from optcli.report.columns import Figure
from optcli.report.notes import Notes
from optcli.report.rows import Row, batch_sizes, rows
from optcli.report.sweep_text import sweep_lines
from optcli.report.terminal import STYLES, UNBOUNDED, plain
from optcli.results import Report
from optcli.results.document import Layout

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table
    from rich.text import Text


def table(report: Report) -> RenderableType:
    """A renderable for rich: tables by batch size, then reasons, recommendation and footer."""
    return _Report(report)


def text(report: Report, width: int | None = None) -> str:
    """The same as plain text. Without a width, as for a pipe, every row and note is one line."""
    return plain(table(report), width)


class _Report:
    def __init__(self, report: Report) -> None:
        self._report = report

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        for number, (report, its_notes) in enumerate(views(self._report)):
            if number:
                yield Text()
            for heading, grid in _sections(report, console, options):
                yield Text(heading, style="bold")
                yield grid
                yield Text()
            if swept := sweep_lines(report):
                yield from (Text(line, no_wrap=True, overflow="fold") for line in swept)
                yield Text()
            yield from self._notes(its_notes)

    def _notes(self, report_notes: Notes) -> Iterator[RenderableType]:
        from rich.padding import Padding
        from rich.text import Text

        styles = {"Failed or skipped": "red", "Engines": "dim"}
        for title, lines in report_notes.sections:
            yield Text(title, style=styles.get(title, "yellow"))
            yield from (Padding(Text(line), (0, 0, 0, 2), expand=False) for line in lines)
            yield Text()
        if report_notes.recommendation:
            yield Text(report_notes.recommendation, style="bold")
            yield Text()
        if report_notes.serving:
            yield Text(report_notes.serving)
            yield Text()
        yield from (Text(line, style="dim") for line in report_notes.footer)
        if report_notes.ending:
            yield from (Text(), Text(report_notes.ending, style="bold"))


def _sections(report: Report, console: Console, options: ConsoleOptions) -> list[tuple[str, Table]]:
    """A heading and a table per batch size, in the layout with fewest lines that fits all of them."""
    from rich.measure import Measurement

    named = report.recipe.name + (f" on {report.device}" if report.device is not None else "")
    sizes = batch_sizes(report)
    unbounded = options.update(max_width=UNBOUNDED)
    sections: list[tuple[str, Table]] = []
    for layout in Layout:
        sections = [
            (
                f"{named}, batch size {size}" if size else named,
                _table(columns.of_results(report, measured, first=size == sizes[0]), measured, layout),
            )
            for size in sizes
            if (measured := rows(report, size))
        ]
        widths = [Measurement.get(console, unbounded, each).maximum for _, each in sections]
        if max(widths, default=0) <= options.max_width:
            break
    return sections


def _table(shown: Sequence[Figure], measured: Sequence[Row], layout: Layout) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    stacks = columns.stacked(shown, layout)
    cells = [[_cell(stack, row, layout) for stack in stacks] for row in measured]
    deep = any("\n" in cell.plain for line in cells for cell in line)
    grid = Table(
        box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), leading=int(deep)
    )
    for stack in stacks:
        left = stack[0][0].left
        heading = "\n".join(", ".join(each.heading(layout) for each in line) for line in stack)
        settings: dict[str, Any] = {"justify": "left" if left else "right", "no_wrap": not left}
        grid.add_column(Text(heading), overflow="fold", **settings)
    for line in cells:
        grid.add_row(*line)
    return grid


def _cell(stack: Sequence[Sequence[Figure]], row: Row, layout: Layout) -> Text:
    """The figures of a stack, a line each; the first counts most."""
    from rich.text import Text

    top = stack[0][0]
    cell = Text("\n".join(", ".join(each.text(row, layout) for each in line) for line in stack))
    first, more, _ = cell.plain.partition("\n")
    if more:
        cell.stylize("dim", len(first))
    if top.name == "variant":
        cell.stylize("bold", 0, len(first))
    cell.stylize(STYLES[top.cell(row).tone])
    return cell
