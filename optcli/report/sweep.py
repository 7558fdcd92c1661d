"""A batch sweep: a row for each batch size, the line through them, the budget."""

from __future__ import annotations

from collections.abc import Iterator

from optcli.errors import counted
from optcli.report import wording
from optcli.results import Estimate, Sweep, SweepFit, SweepPoint
from optcli.results.document import Cell, Column, Items, Section, Table

# Of the interquartile range over the median, as everywhere.
_FLUCTUATING = 0.20


def section(name: str, sweep: Sweep) -> Section:
    """The sweep of a variant."""
    launches = f", {counted(sweep.launches, 'launch', 'launches')}" if sweep.launches else ""
    columns = [
        Column[SweepPoint]("batch", lambda point: Cell(str(point.batch_size))),
        Column[SweepPoint]("p50 ms", lambda point: _milliseconds(point, point.p50_ms)),
        Column[SweepPoint]("p99 ms", lambda point: _milliseconds(point, point.p99_ms)),
        Column[SweepPoint]("images/s", lambda point: Cell(wording.number(point.throughput_per_s))),
        Column[SweepPoint]("calls", lambda point: Cell(str(point.samples))),
    ]
    return Section(
        f"Batch sweep of {name}{launches}",
        [Table(columns, sweep.points), Items(sentences(sweep))],
    )


def _milliseconds(point: SweepPoint, estimate: Estimate | None) -> Cell:
    return Cell(wording.milliseconds(estimate), wording.interval(estimate) if point.fit else "")


def sentences(sweep: Sweep) -> list[str]:
    """What a sweep says in words: the line, the budget and what it covers, why it stopped, doubts."""
    texts = [] if sweep.fit is None else [_line(sweep.fit)]
    if sweep.budget is not None:
        texts.append(f"budget: {sweep.budget.sentence}")
        texts += [
            "the bound is the upper end of p99's 95 % interval over"
            f" {counted(sweep.launches, 'launch', 'launches')}",
            "one process made the calls one after the other, and optcli ran nothing beside it",
            "the bound does not cover waiting in queues, other work or other machines",
        ]
    texts += _padded(sweep)
    texts.append(f"stopped: {sweep.stopped_because}")
    restless = [
        str(each.batch_size) for each in sweep.points if each.fit and (each.spread or 0) > _FLUCTUATING
    ]
    unfit = [str(each.batch_size) for each in sweep.points if not each.fit]
    if restless:
        texts.append(f"fluctuating at batch {wording.listed(restless)}")
    if unfit:
        texts.append(
            f"other work disturbed batch {wording.listed(unfit)}: optcli draws no conclusion from it,"
            " and the line leaves it out"
        )
    return texts


def _padded(sweep: Sweep) -> Iterator[str]:
    smaller: dict[int, list[str]] = {}
    for point in sweep.points:
        if point.padded_to is not None:
            smaller.setdefault(point.padded_to, []).append(str(point.batch_size))
    for larger, sizes in smaller.items():
        noun = "batches of" if len(sizes) == 1 else "batches of sizes"
        yield f"the runner padded {noun} {wording.listed(sizes)} to {larger}, the next compiled size"


def _line(fit: SweepFit) -> str:
    fixed, each = (wording.with_interval(ms, "") for ms in (fit.fixed_ms, fit.per_image_ms))
    formula = f"t(B) = {fixed} ms + B * {each} ms"
    off = f"largest residual {wording.percent(fit.largest_residual)}"
    if fit.linear:
        return f"{formula}, {off}"
    return f"non-linear: {formula} does not describe it ({off}); between the points, interpolate"
