"""The columns of a report, each defined once: a new column is one entry of `COLUMNS`, at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from optcli.report import wording
from optcli.report.rows import Row, accuracy_label, fastest_fp32
from optcli.results import Estimate, Report
from optcli.results.document import Cell, Column, Layout
from optcli.results.statistics import needed

# Instead of an interval, where the machine was not quiet enough for one to mean anything.
_DISTURBED = "disturbed"
_NOT_MEASURED = "not measured"
# A bound twice as far away as the value, or further, says nothing.
_UNSURE = 1.0


def memory(row: Row) -> Cell:
    """The most that the process held."""
    peak_bytes = row.latency.peak_memory_bytes if row.latency else None
    return Cell(wording.NONE if peak_bytes is None else wording.megabytes(peak_bytes))


def flags(row: Row) -> str:
    """What to distrust about the latency."""
    return "; ".join(flag.text for flag in row.latency.flags) if row.latency else ""


def text(name: str) -> Callable[[Row], Cell]:
    """A setting of the measurement as it is."""
    return lambda row: Cell(str(getattr(row.latency, name)))


def _latency_cell(name: str) -> Callable[[Row], dict[str, Any]]:
    """A plain figure of the latency for CSV, under its own name."""
    return lambda row: {name: getattr(row.latency, name, None)}


def _latency_estimate(name: str) -> Callable[[Row], dict[str, Any]]:
    """An estimate of the latency for CSV: value and interval."""
    return lambda row: wording.estimate_cells(name, getattr(row.latency, name, None))


def number(name: str) -> Callable[[Row], Cell]:
    """A plain figure of the latency."""

    def cell(row: Row) -> Cell:
        value = getattr(row.latency, name, None)
        return Cell(wording.NONE if value is None else wording.number(value))

    return cell


def percentile(name: str, q: float, *, disturbed: str = "") -> Callable[[Row], Cell]:
    """A percentile; `disturbed` stands instead of its interval where the machine was not quiet.

    One whose bound lies further away than its own size is rough, and `unsure` stands there.
    """

    def cell(row: Row) -> Cell:
        latency = row.latency
        if latency is None:
            return Cell(wording.NONE, why=_NOT_MEASURED)
        estimate = getattr(latency, name)
        value, few = wording.milliseconds(estimate), latency.samples < needed(q)
        why = f"n={latency.samples}, needs {needed(q)}" if few else "not known"
        if not latency.fit:
            return Cell(value, disturbed, why=why)
        if wording.reach(estimate) > _UNSURE:
            rough = wording.number(estimate.value, significant=2)
            return Cell(rough, "unsure", f"{rough}, unsure", why)
        return Cell(value, wording.interval(estimate), value + wording.half_width(estimate), why)

    return cell


def speedup(row: Row) -> Cell:
    """How many times as fast as the baseline."""
    estimate = row.latency.speedup if row.latency else None
    return _ratio(row, estimate, with_interval=not row.is_baseline)


def over_fp32(row: Row) -> Cell:
    """How many times as fast as the fastest in fp32."""
    against = row.latency.over_fp32 if row.latency else None
    estimate = against.speedup if against else None
    return _ratio(row, estimate, with_interval=against is not None and against.variant != row.name)


def _ratio(row: Row, estimate: Estimate | None, *, with_interval: bool) -> Cell:
    """How many times as fast; over itself it has no interval."""
    value = wording.times(estimate)
    if row.latency is None:
        why = _NOT_MEASURED
    elif not row.latency.fit:
        why = "other work disturbed it: measure again when the machine is quiet"
    else:
        why = "not measured beside it, or the other one was disturbed"
    if not with_interval:
        return Cell(value, why=why)
    return Cell(value, wording.interval(estimate), value + wording.half_width(estimate), why)


def _against_cells(name: str) -> Callable[[Row], dict[str, Any]]:
    """The speed-up over another variant than the baseline, for CSV."""

    def cells(row: Row) -> dict[str, Any]:
        against = getattr(row.latency, name, None)
        return {
            f"{name}_variant": against.variant if against else None,
            **wording.estimate_cells(f"speedup_{name}", against.speedup if against else None),
        }

    return cells


def on_device(row: Row) -> Cell:
    """The median of the same calls on the device, with its interval."""
    same = row.variant.on_device.get(row.latency.batch_size) if row.latency else None
    if same is None:
        return Cell("", why="not timed on the device")
    return Cell(f"{wording.milliseconds(same.p50_ms)} {wording.interval(same.p50_ms)}".strip())


def operations(row: Row) -> Cell:
    """Operations of a call in units of 10^9."""
    work = row.variant.operations
    if work is None or row.latency is None:
        return Cell("")
    return Cell(wording.number(work.per_image * row.latency.batch_size / 1e9))


def of_peak(row: Row) -> Cell:
    """The share of what the machine can do at most; in short its interval has a line of its own."""
    if row.variant.operations is None or row.latency is None:
        return Cell("")
    share = row.share
    if share is None:
        return Cell(wording.NONE)
    value = f"{_percent(share.share)} % ({share.bound})"
    if share.low is None or share.high is None:
        return Cell(value)
    span = f"[{_percent(share.low)}, {_percent(share.high)}]"
    return Cell(f"{value} {span}", short=f"{value}\n{span}")


def _percent(share: float) -> str:
    return f"{100 * share:.0f}" if share >= 0.1 else f"{100 * share:.1f}"


def _limit_cells(row: Row) -> dict[str, Any]:
    """Of one call, for CSV: operations, bytes at least, and the share of the machine's peak."""
    work, latency, share = row.variant.operations, row.latency, row.share
    if work is None or latency is None or latency.region == "device":
        work = share = None
    size = latency.batch_size if latency else 0
    return {
        "operations": work.per_image * size if work else None,
        "moved_bytes": work.moved_bytes(size) if work else None,
        "share_of_peak": share.share if share else None,
        "bound_by": share.bound if share else None,
        "share_of_peak_low": share.low if share else None,
        "share_of_peak_high": share.high if share else None,
    }


def accuracy(row: Row) -> Cell:
    """The metric; without labels the distance of the outputs from the baseline's."""
    judged = row.variant.accuracy
    if accuracy_label(row.report) != "SQNR":
        return Cell(wording.percent(judged.value if judged else None))
    if row.is_baseline:
        return Cell("reference")
    return Cell(wording.difference(judged.output_error if judged else None))


def _accuracy_cells(row: Row) -> dict[str, Any]:
    """The metric, its change and the distance of the outputs, for CSV."""
    judged = row.variant.accuracy
    error = judged.output_error if judged else None
    return {
        "metric": judged.metric if judged else None,
        "accuracy": judged.value if judged else None,
        "accuracy_samples": judged.samples if judged else None,
        **wording.estimate_cells("accuracy_drop", judged.drop if judged else None),
        "sqnr_db": error.sqnr_db if error else None,
    }


def verdict(row: Row) -> Cell:
    """The verdicts in few words."""
    if row.variant.status == "failed":
        return Cell("failed", tone="reject")
    words, outcome = wording.verdict(row.variant, row.is_baseline)
    return Cell(words, tone="baseline" if words == "baseline" else outcome)


def _verdict_cells(row: Row) -> dict[str, Any]:
    """The verdict of what was built, for CSV."""
    if row.variant.status not in ("built", "cached"):
        return {"verdict": "", "outcome": ""}
    words, outcome = wording.verdict(row.variant, row.is_baseline)
    return {"verdict": words, "outcome": outcome}


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
    return any(operations(row).value for row in rows)


def _plain(name: str, value: Callable[[Row], Any]) -> Figure:
    """A column of CSV alone."""
    return Figure(name, csv=lambda row: {name: value(row)}, in_table=False)


def _of_latency(name: str) -> Figure:
    """A figure of the latency, in CSV alone."""
    return Figure(name, csv=_latency_cell(name), in_table=False)


def _detail(name: str, figure: str, cell: Callable[[Row], Cell] | None = None, **more: Any) -> Figure:
    """A figure of the latency, in CSV and in the table of more figures."""
    shown = cell or number(figure)
    return Figure(name, shown, _latency_cell(figure), in_table=False, in_details=True, **more)


# In the order of CSV, which is that of the tables but for the `last` one.
COLUMNS: tuple[Figure, ...] = (
    _plain("recipe", lambda row: row.report.recipe.name),
    Figure("variant", lambda row: Cell(row.name), lambda row: {"variant": row.name}, "left",
           in_details=True),
    _plain("status", lambda row: row.variant.status),
    Figure("verdict", verdict, _verdict_cells, "left", every_size=True, last=True),
    Figure("runtime", lambda row: Cell(str(row.runner.get("name", row.format))),
           lambda row: {"runtime": row.runner.get("name")}, "left", below=("variant",)),
    Figure("precision", lambda row: Cell(str(row.precision)), lambda row: {"precision": row.precision},
           "left", below=("variant",)),
    _plain("format", lambda row: row.format),
    Figure("size", lambda row: Cell(wording.megabytes(row.size_bytes or 0)),
           lambda row: {"size_bytes": row.size_bytes}, below=("precision",)),
    _plain("build_s", lambda row: row.variant.build_s),
    _detail("batch", "batch_size", text("batch_size")),
    _detail("region", "region", text("region"), align="left",
            is_present=lambda report, rows: any(row.variant.on_device for row in rows)),
    _detail("threads", "threads", text("threads")),
    _of_latency("launches"),
    _detail("calls", "samples", text("samples")),
    Figure("p50 ms", percentile("p50_ms", 0.5, disturbed=_DISTURBED),
           _latency_estimate("p50_ms"), headings=("p50 ms", "p50 ms", "p50 ms", "p50 ms ±95 %"),
           is_present=_is_measured),
    Figure("p90", csv=_latency_estimate("p90_ms"), in_table=False),
    Figure("p95 ms", percentile("p95_ms", 0.95), _latency_estimate("p95_ms"),
           headings=("p95 ms", "p95 ms", "p95"), brief_in=(Layout.ONE_LINE, Layout.NARROW),
           below_of_three=("p50 ms",), is_present=_is_measured),
    Figure("p99 ms", percentile("p99_ms", 0.99), _latency_estimate("p99_ms"),
           headings=("p99 ms", "p99 ms", "p99"), brief_in=(Layout.ONE_LINE, Layout.NARROW),
           below=("p95 ms",), below_of_three=("p50 ms",), is_present=_is_measured),
    _detail("mean ms", "mean_ms"),
    Figure("images/s", number("throughput_per_s"), _latency_cell("throughput_per_s"),
           below=("speed-up", "p50 ms"), is_present=_is_measured),
    Figure("speed-up", speedup, _latency_estimate("speedup"), is_present=_is_measured),
    Figure("vs fp32", over_fp32, _against_cells("over_fp32"), below=("speed-up",),
           is_present=lambda report, rows: bool(fastest_fp32(report))),
    Figure("over parent", csv=_against_cells("over_parent"), in_table=False),
    Figure("device ms", on_device, headings=("device ms", "device\np50 ms"),
           is_present=lambda report, rows: any(on_device(row).value for row in rows)),
    _detail("CPU ms", "cpu_ms"),
    _detail("import ms", "import_ms"),
    _detail("load ms", "load_ms"),
    _detail("first ms", "first_ms"),
    _detail("memory", "peak_memory_bytes", memory),
    _of_latency("measured_at"),
    _of_latency("fit"),
    Figure("flags", lambda row: Cell(flags(row)), lambda row: {"flags": flags(row)},
           "wrapped", in_table=False, in_details=True),
    Figure("GOP", operations, _limit_cells, is_present=_has_operations),
    Figure("of peak", of_peak, is_present=_has_operations, brief_in=_FEW_COLUMNS,
           below=("GOP",)),
    Figure("accuracy", accuracy, _accuracy_cells, title=accuracy_label,
           is_present=lambda report, rows: accuracy_label(report) is not None, every_size=True),
    Figure("change", lambda row: Cell("" if row.is_baseline else wording.change(row.variant.accuracy)),
           is_present=lambda report, rows: accuracy_label(report) not in (None, "SQNR"),
           every_size=True, below=("accuracy",)),
    _plain("reason", lambda row: row.variant.reason),
    _plain("not_measured", lambda row: "; ".join(flag.kind for flag in row.variant.flags)),
    _plain("device", lambda row: row.report.device),
)  # fmt: skip
