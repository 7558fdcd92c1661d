"""What the columns of a report hold: the cells of a row, and its figures for CSV."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from optcli.report import wording
from optcli.report.rows import Row, accuracy_label
from optcli.results import Estimate
from optcli.results.document import Cell
from optcli.results.statistics import needed

# Instead of an interval, where the machine was not quiet enough for one to mean anything.
DISTURBED = "disturbed"
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


def latency_cell(name: str) -> Callable[[Row], dict[str, Any]]:
    """A plain figure of the latency for CSV, under its own name."""
    return lambda row: {name: getattr(row.latency, name, None)}


def latency_estimate(name: str) -> Callable[[Row], dict[str, Any]]:
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


def against_cells(name: str) -> Callable[[Row], dict[str, Any]]:
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


def limit_cells(row: Row) -> dict[str, Any]:
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


def accuracy_cells(row: Row) -> dict[str, Any]:
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
    said, outcome = wording.verdict(row.variant, row.is_baseline)
    return Cell(said, tone="baseline" if said == "baseline" else outcome)


def verdict_cells(row: Row) -> dict[str, Any]:
    """The verdict of what was built, for CSV."""
    if row.variant.status not in ("built", "cached"):
        return {"verdict": "", "outcome": ""}
    said, outcome = wording.verdict(row.variant, row.is_baseline)
    return {"verdict": said, "outcome": outcome}
