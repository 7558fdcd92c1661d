"""The columns of a report, each defined once: a new column is one entry of `COLUMNS`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from optcli.report import cells, wording
from optcli.report.rows import Row, accuracy_label, fastest_fp32
from optcli.results import Report
from optcli.results.document import Cell, Column, Layout

_FEW_COLUMNS = (Layout.TWO_LINES, Layout.THREE_LINES, Layout.NARROW)


@dataclass(frozen=True)
class Figure(Column[Row]):
    """One column of a report, and where it stands.

    `title` is its heading where that depends on the report; `is_present` says whether a report, or
    these rows of it, has the column. One that is the same at `every_size` stands in the first table of
    the terminal and of HTML only. `last` ones stand at the right. `in_details` is for HTML's table of
    more figures.
    """

    title: Callable[[Report], str | None] | None = None
    is_present: Callable[[Report, Sequence[Row]], bool] = lambda report, rows: True
    every_size: bool = False
    last: bool = False
    in_details: bool = False


def of_results(report: Report, rows: Sequence[Row], *, first: bool = True) -> list[Figure]:
    """The columns of a table of results, from left to right; `first`: of the first batch size."""
    present = [
        replace(column, headings=(column.title(report) or "",)) if column.title else column
        for column in COLUMNS
        if column.in_table and column.is_present(report, rows) and (first or not column.every_size)
    ]
    return sorted(present, key=lambda column: column.last)


def of_details(report: Report, rows: Sequence[Row]) -> list[Figure]:
    """The columns of the table of more figures."""
    return [column for column in COLUMNS if column.in_details and column.is_present(report, rows)]


def _is_measured(report: Report, rows: Sequence[Row]) -> bool:
    return any(row.latency is not None for row in rows)


def _has_operations(report: Report, rows: Sequence[Row]) -> bool:
    return any(cells.operations(row).value for row in rows)


def _plain(name: str, value: Callable[[Row], Any]) -> Figure:
    """A column of CSV alone."""
    return Figure(name, csv=lambda row: {name: value(row)}, in_table=False)


def _of_latency(name: str) -> Figure:
    """A figure of the latency, in CSV alone."""
    return Figure(name, csv=cells.latency_cell(name), in_table=False)


def _detail(name: str, figure: str, cell: Callable[[Row], Cell] | None = None, **more: Any) -> Figure:
    """A figure of the latency, in CSV and in the table of more figures."""
    shown = cell or cells.number(figure)
    return Figure(name, shown, cells.latency_cell(figure), in_table=False, in_details=True, **more)


# In the order of CSV, which is that of the tables but for the `last` one.
COLUMNS: tuple[Figure, ...] = (
    _plain("recipe", lambda row: row.report.recipe.name),
    Figure("variant", lambda row: Cell(row.name), lambda row: {"variant": row.name}, "left",
           in_details=True),
    _plain("status", lambda row: row.variant.status),
    Figure("verdict", cells.verdict, cells.verdict_cells, "left", every_size=True, last=True),
    Figure("runtime", lambda row: Cell(str(row.runner.get("name", row.format))),
           lambda row: {"runtime": row.runner.get("name")}, "left", below=("variant",)),
    Figure("precision", lambda row: Cell(str(row.precision)), lambda row: {"precision": row.precision},
           "left", below=("variant",)),
    _plain("format", lambda row: row.format),
    Figure("size", lambda row: Cell(wording.megabytes(row.size_bytes or 0)),
           lambda row: {"size_bytes": row.size_bytes}, below=("precision",)),
    _plain("build_s", lambda row: row.variant.build_s),
    _detail("batch", "batch_size", cells.text("batch_size")),
    _detail("region", "region", cells.text("region"), align="left",
            is_present=lambda report, rows: any(row.variant.on_device for row in rows)),
    _detail("threads", "threads", cells.text("threads")),
    _of_latency("launches"),
    _detail("calls", "samples", cells.text("samples")),
    Figure("p50 ms", cells.percentile("p50_ms", 0.5, disturbed=cells.DISTURBED),
           cells.latency_estimate("p50_ms"), headings=("p50 ms", "p50 ms", "p50 ms", "p50 ms ±95 %"),
           is_present=_is_measured),
    Figure("p90", csv=cells.latency_estimate("p90_ms"), in_table=False),
    Figure("p95 ms", cells.percentile("p95_ms", 0.95), cells.latency_estimate("p95_ms"),
           headings=("p95 ms", "p95 ms", "p95"), brief_in=(Layout.ONE_LINE, Layout.NARROW),
           below_of_three=("p50 ms",), is_present=_is_measured),
    Figure("p99 ms", cells.percentile("p99_ms", 0.99), cells.latency_estimate("p99_ms"),
           headings=("p99 ms", "p99 ms", "p99"), brief_in=(Layout.ONE_LINE, Layout.NARROW),
           below=("p95 ms",), below_of_three=("p50 ms",), is_present=_is_measured),
    _detail("mean ms", "mean_ms"),
    Figure("images/s", cells.number("throughput_per_s"), cells.latency_cell("throughput_per_s"),
           below=("speed-up", "p50 ms"), is_present=_is_measured),
    Figure("speed-up", cells.speedup, cells.latency_estimate("speedup"), is_present=_is_measured),
    Figure("vs fp32", cells.over_fp32, cells.against_cells("over_fp32"), below=("speed-up",),
           is_present=lambda report, rows: bool(fastest_fp32(report))),
    Figure("over parent", csv=cells.against_cells("over_parent"), in_table=False),
    Figure("device ms", cells.on_device, headings=("device ms", "device\np50 ms"),
           is_present=lambda report, rows: any(cells.on_device(row).value for row in rows)),
    _detail("CPU ms", "cpu_ms"),
    _detail("import ms", "import_ms"),
    _detail("load ms", "load_ms"),
    _detail("first ms", "first_ms"),
    _detail("memory", "peak_memory_bytes", cells.memory),
    _of_latency("measured_at"),
    _of_latency("fit"),
    Figure("flags", lambda row: Cell(cells.flags(row)), lambda row: {"flags": cells.flags(row)},
           "wrapped", in_table=False, in_details=True),
    Figure("GOP", cells.operations, cells.limit_cells, is_present=_has_operations),
    Figure("of peak", cells.of_peak, is_present=_has_operations, brief_in=_FEW_COLUMNS,
           below=("GOP",)),
    Figure("accuracy", cells.accuracy, cells.accuracy_cells, title=accuracy_label,
           is_present=lambda report, rows: accuracy_label(report) is not None, every_size=True),
    Figure("change", lambda row: Cell("" if row.is_baseline else wording.change(row.variant.accuracy)),
           is_present=lambda report, rows: accuracy_label(report) not in (None, "SQNR"),
           every_size=True, below=("accuracy",)),
    _plain("reason", lambda row: row.variant.reason),
    _plain("not_measured", lambda row: "; ".join(flag.kind for flag in row.variant.flags)),
    _plain("device", lambda row: row.report.device),
)  # fmt: skip
