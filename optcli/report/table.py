"""The report as a table for the terminal, in the widest of three layouts that fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from optcli.report.notes import notes
from optcli.report.rows import Row, accuracy_label, batch_sizes, rows
from optcli.report.sweep_text import sweep_lines
from optcli.results import Report

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
    from rich.table import Table
    from rich.text import Text

# A heading, one line each, and the cell's lines. A heading of several lines names several figures.
Column = tuple[str, Callable[[Row], Sequence[str]]]

_STYLES = {"accept": "green", "inconclusive": "yellow", "reject": "red"}
# For pipes: wide enough that nothing is ever broken.
_UNBOUNDED = 10_000


def table(report: Report) -> RenderableType:
    """A renderable for rich: tables by batch size, then reasons, recommendation and footer."""
    return _Report(report)


def text(report: Report, width: int | None = None) -> str:
    """The same as plain text. Without a width, as for a pipe, every row and note is one line."""
    import io

    from rich.console import Console

    stream = io.StringIO()
    console = Console(
        file=stream, width=width or _UNBOUNDED, color_system=None, force_terminal=False, highlight=False
    )
    console.print(table(report))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


class _Report:
    def __init__(self, report: Report) -> None:
        self._report = report

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        for heading, made in _sections(self._report, console, options):
            yield Text(heading, style="bold")
            yield made
            yield Text()
        if swept := sweep_lines(self._report):
            yield from (Text(line, no_wrap=True, overflow="fold") for line in swept)
            yield Text()
        yield from self._notes()

    def _notes(self) -> Iterator[RenderableType]:
        from rich.padding import Padding
        from rich.text import Text

        found = notes(self._report)
        for title, lines, style in (
            ("Failed or skipped", found.missing, "red"),
            ("Verdicts", found.reasons, "yellow"),
            ("Engines", found.engines, "dim"),
            ("Found since the build", found.later, "yellow"),
            ("Doubts about the measurement", found.doubts, "yellow"),
        ):
            if lines:
                yield Text(title, style=style)
                yield from (Padding(Text(line), (0, 0, 0, 2), expand=False) for line in lines)
                yield Text()
        if found.recommendation:
            yield Text(found.recommendation, style="bold")
            yield Text()
        yield from (Text(line, style="dim") for line in found.footer)


def _sections(report: Report, console: Console, options: ConsoleOptions) -> list[tuple[str, Table]]:
    """A heading and a table per batch size, in the layout with fewest lines that fits all of them."""
    from rich.measure import Measurement

    sizes = batch_sizes(report)
    found = {size: rows(report, size) for size in sizes}
    label = accuracy_label(report)
    unbounded = options.update(max_width=_UNBOUNDED)
    made: list[tuple[str, Table]] = []
    for layout in (_one_line, _two_lines, _three_lines):
        made = [
            (
                f"{report.recipe.name}, batch size {size}" if size else report.recipe.name,
                _table(_with_more(layout(label, size == sizes[0]), found[size]), found[size]),
            )
            for size in sizes
            if found[size]
        ]
        widths = [Measurement.get(console, unbounded, each).maximum for _, each in made]
        if max(widths, default=0) <= options.max_width:
            break
    return made


def _table(columns: Sequence[Column], found: Sequence[Row]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    deep = max(len(lines(row)) for _, lines in columns for row in found)
    made = Table(
        box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), leading=int(deep > 1)
    )
    for heading, _ in columns:
        left = heading.startswith(("variant", "precision", "runtime", "verdict"))
        settings: dict[str, Any] = {"justify": "left" if left else "right", "no_wrap": not left}
        made.add_column(Text(heading), overflow="fold", **settings)
    for row in found:
        made.add_row(*(_cell(heading, lines(row), row) for heading, lines in columns))
    return made


def _cell(heading: str, lines: Sequence[str], row: Row) -> Text:
    from rich.text import Text

    cell = Text("\n".join(lines))
    if heading == "verdict":
        cell.stylize(_STYLES[row.outcome])
    elif len(lines) > 1:
        cell.stylize("dim", len(lines[0]))
    if heading.startswith("variant"):
        cell.stylize("bold", 0, len(row.variant))
    return cell


def _one_line(accuracy: str | None, with_verdict: bool) -> list[Column]:
    columns: list[Column] = [
        ("variant", lambda row: [row.variant]),
        ("runtime", lambda row: [row.runtime]),
        ("precision", lambda row: [row.precision]),
        ("size", lambda row: [row.size]),
        ("p50 ms", lambda row: [_joined(row.p50, row.p50_interval)]),
        ("p95 ms", lambda row: [row.p95]),
        ("p99 ms", lambda row: [row.p99]),
        ("images/s", lambda row: [row.rate]),
        ("speed-up", lambda row: [_joined(row.speedup, row.speedup_interval)]),
    ]
    if with_verdict and accuracy:
        columns.append((accuracy, lambda row: [row.accuracy]))
        if accuracy != "SQNR":
            columns.append(("change", lambda row: [row.change]))
    return columns + _verdict(with_verdict)


def _two_lines(accuracy: str | None, with_verdict: bool) -> list[Column]:
    columns: list[Column] = [
        ("variant\nruntime", lambda row: [row.variant, row.runtime]),
        ("precision\nsize", lambda row: [row.precision, row.size]),
        ("p50 ms\np95, p99", lambda row: [_joined(row.p50, row.p50_interval), f"{row.p95}, {row.p99}"]),
        ("speed-up\nimages/s", lambda row: [_joined(row.speedup, row.speedup_interval), row.rate]),
    ]
    return columns + _accuracy(accuracy, with_verdict) + _verdict(with_verdict)


def _three_lines(accuracy: str | None, with_verdict: bool) -> list[Column]:
    columns: list[Column] = [
        (
            "variant\nruntime\nprecision, size",
            lambda row: [row.variant, row.runtime, f"{row.precision}, {row.size}"],
        ),
        ("p50 ms\n[95 %]\np95, p99", lambda row: [row.p50, row.p50_interval, f"{row.p95}, {row.p99}"]),
        ("speed-up\n[95 %]\nimages/s", lambda row: [row.speedup, row.speedup_interval, row.rate]),
    ]
    return columns + _accuracy(accuracy, with_verdict) + _verdict(with_verdict)


def _with_more(columns: list[Column], found: Sequence[Row]) -> list[Column]:
    """What only some reports have, behind the speed-up.

    The time on a GPU; operations and the share of the machine's peak.
    """
    after = next(i for i, (heading, _) in enumerate(columns) if heading.startswith("speed-up")) + 1
    added: list[Column] = []
    one_line = all("\n" not in heading for heading, _ in columns)
    if any(row.device for row in found):
        added.append(("device\np50 ms" if not one_line else "device ms", lambda row: [row.device]))
    if any(row.operations for row in found):
        limits: list[Column] = [
            ("GOP", lambda row: [row.operations]),
            ("of peak", lambda row: [row.share]),
        ]
        added += limits if one_line else [("GOP\nof peak", lambda row: [row.operations, row.share])]
    return [*columns[:after], *added, *columns[after:]]


def _accuracy(label: str | None, wanted: bool) -> list[Column]:
    if not wanted or label is None:
        return []
    if label == "SQNR":
        return [(label, lambda row: [row.accuracy])]
    return [(f"{label}\nchange", lambda row: [row.accuracy, row.change])]


def _verdict(wanted: bool) -> list[Column]:
    """Accuracy and verdict are the same at every batch size: they stand in the first table only."""
    return [("verdict", lambda row: [row.verdict])] if wanted else []


def _joined(value: str, interval: str) -> str:
    return f"{value} {interval}" if interval else value
