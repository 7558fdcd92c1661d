"""The report as a table for the terminal, in the widest of four layouts that fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optcli.report.notes import notes
from optcli.report.rows import Row, accuracy_label, batch_sizes, fastest_fp32, rows
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
        if found.ending:
            yield from (Text(), Text(found.ending, style="bold"))


def _sections(report: Report, console: Console, options: ConsoleOptions) -> list[tuple[str, Table]]:
    """A heading and a table per batch size, in the layout with fewest lines that fits all of them."""
    from rich.measure import Measurement

    sizes = batch_sizes(report)
    found = {size: rows(report, size) for size in sizes}
    label = accuracy_label(report)
    unbounded = options.update(max_width=_UNBOUNDED)
    fp32 = bool(fastest_fp32(report))
    made: list[tuple[str, Table]] = []
    layouts: Sequence[Layout] = (_one_line, _two_lines, _three_lines, _narrow)
    for layout in layouts:
        made = [
            (
                f"{report.recipe.name}, batch size {size}" if size else report.recipe.name,
                _table(
                    _with_more(layout(_Shown(label, size == sizes[0], fp32)), found[size]), found[size]
                ),
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


@dataclass(frozen=True)
class _Shown:
    """What a table has besides the latency; the accuracy's column is called `accuracy`."""

    accuracy: str | None
    with_verdict: bool
    with_fp32: bool


Layout = Callable[[_Shown], list[Column]]


def _one_line(shown: _Shown) -> list[Column]:
    columns: list[Column] = [
        ("variant", lambda row: [row.variant]),
        ("runtime", lambda row: [row.runtime]),
        ("precision", lambda row: [row.precision]),
        ("size", lambda row: [row.size]),
        ("p50 ms", lambda row: [_p50(row)]),
        ("p95 ms", lambda row: [row.short["p95"]]),
        ("p99 ms", lambda row: [row.short["p99"]]),
        ("images/s", lambda row: [row.rate]),
        ("speed-up", lambda row: [_speedup(row)]),
    ]
    if shown.with_fp32:
        columns.append((_FP32, lambda row: [_fp32(row)]))
    if shown.with_verdict and shown.accuracy:
        columns.append((shown.accuracy, lambda row: [row.accuracy]))
        if shown.accuracy != "SQNR":
            columns.append(("change", lambda row: [row.change]))
    return columns + _verdict(shown)


def _two_lines(shown: _Shown) -> list[Column]:
    columns: list[Column] = [
        ("variant\nruntime", lambda row: [row.variant, row.runtime]),
        ("precision\nsize", lambda row: [row.precision, row.size]),
    ]
    if shown.with_fp32:
        columns += [
            ("p50 ms\nimages/s", lambda row: [_p50(row), row.rate]),
            ("p95 ms\np99 ms", lambda row: [_p95(row), _p99(row)]),
            (f"speed-up\n{_FP32}", lambda row: [_speedup(row), _fp32(row)]),
        ]
    else:
        columns += [
            ("p50 ms", lambda row: [_p50(row)]),
            ("p95 ms\np99 ms", lambda row: [_p95(row), _p99(row)]),
            ("speed-up\nimages/s", lambda row: [_speedup(row), row.rate]),
        ]
    return columns + _accuracy(shown) + _verdict(shown)


def _three_lines(shown: _Shown) -> list[Column]:
    columns: list[Column] = [
        (_NAMES, lambda row: [row.variant, row.runtime, f"{row.precision}, {row.size}"]),
        ("p50 ms\np95\np99", lambda row: [_p50(row), _p95(row), _p99(row)]),
    ]
    if shown.with_fp32:
        heading = f"speed-up\n{_FP32}\nimages/s"
        columns.append((heading, lambda row: [_speedup(row), _fp32(row), row.rate]))
    else:
        columns.append(("speed-up\nimages/s", lambda row: [_speedup(row), row.rate]))
    return columns + _accuracy(shown) + _verdict(shown)


def _narrow(shown: _Shown) -> list[Column]:
    """Intervals in short: the wider half of each, in percent of the value."""
    columns: list[Column] = [
        (_NAMES, lambda row: [row.variant, row.runtime, f"{row.precision}, {row.size}"]),
        ("p50 ms ±95 %\np95\np99", lambda row: [row.short[name] for name in ("p50", "p95", "p99")]),
    ]
    if shown.with_fp32:
        heading = f"speed-up\n{_FP32}\nimages/s"
        columns.append((heading, lambda row: [row.short["speed-up"], row.short["fp32"], row.rate]))
    else:
        columns.append(("speed-up\nimages/s", lambda row: [row.short["speed-up"], row.rate]))
    return columns + _accuracy(shown) + _verdict(shown)


_NAMES = "variant\nruntime\nprecision, size"
_FP32 = "vs fp32"


def _p50(row: Row) -> str:
    return _joined(row.p50, row.p50_interval)


def _p95(row: Row) -> str:
    return _joined(row.p95, row.p95_interval)


def _p99(row: Row) -> str:
    return _joined(row.p99, row.p99_interval)


def _speedup(row: Row) -> str:
    return _joined(row.speedup, row.speedup_interval)


def _fp32(row: Row) -> str:
    return _joined(row.fp32, row.fp32_interval)


def _with_more(columns: list[Column], found: Sequence[Row]) -> list[Column]:
    """What only some reports have, behind the speed-ups.

    The time on a GPU; operations and the share of the machine's peak.
    """
    speeds = ("speed-up", _FP32)
    after = max(i for i, (heading, _) in enumerate(columns) if heading.startswith(speeds)) + 1
    added: list[Column] = []
    one_line = all("\n" not in heading for heading, _ in columns)
    if any(row.device for row in found):
        added.append(("device\np50 ms" if not one_line else "device ms", lambda row: [row.device]))
    if any(row.operations for row in found):
        limits: list[Column] = [
            ("GOP", lambda row: [row.operations]),
            ("of peak", lambda row: [_joined(row.share, row.share_interval)]),
        ]
        both: Column = (
            "GOP\nof peak",
            lambda row: [row.operations, row.share, *filter(None, [row.share_interval])],
        )
        added += limits if one_line else [both]
    return [*columns[:after], *added, *columns[after:]]


def _accuracy(shown: _Shown) -> list[Column]:
    label = shown.accuracy
    if not shown.with_verdict or label is None:
        return []
    if label == "SQNR":
        return [(label, lambda row: [row.accuracy])]
    return [(f"{label}\nchange", lambda row: [row.accuracy, row.change])]


def _verdict(shown: _Shown) -> list[Column]:
    """Accuracy and verdict are the same at every batch size: they stand in the first table only."""
    return [("verdict", lambda row: [row.verdict])] if shown.with_verdict else []


def _joined(value: str, interval: str) -> str:
    return f"{value} {interval}" if interval else value
