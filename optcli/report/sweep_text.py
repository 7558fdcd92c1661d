"""The batch sweep below the table: a row for each batch size, the line through them, the budget."""

from __future__ import annotations

from collections.abc import Iterator

from optcli.errors import counted
from optcli.report import wording
from optcli.report.markdown_text import table
from optcli.report.terminal import aligned
from optcli.results import Report, Sweep, SweepFit

# Of the interquartile range over the median, as everywhere.
_FLUCTUATING = 0.20


def sweep_lines(report: Report) -> list[str]:
    """Plain text: a block for each variant that was swept; nothing where none was."""
    lines: list[str] = []
    for name, variant in report.variants.items():
        if variant.sweep is not None:
            lines += [*([""] if lines else []), *_block(name, variant.sweep)]
    return lines


def sweep_markdown(report: Report) -> list[str]:
    """The same as Markdown: a table and its sentences for each variant."""
    lines: list[str] = []
    for name, variant in report.variants.items():
        if variant.sweep is not None:
            lines += ["", f"### Batch sweep of {name}", ""]
            if variant.sweep.points:
                lines += table(_HEADINGS, _cells(variant.sweep))
                lines += [""]
            lines += [f"- {sentence}" for sentence in sentences(variant.sweep)]
    return lines


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


_HEADINGS = ("batch", "p50 ms", "[95 %]", "p99 ms", "[95 %]", "images/s", "calls")


def _block(name: str, sweep: Sweep) -> Iterator[str]:
    yield f"Batch sweep of {name}" + (
        f", {counted(sweep.launches, 'launch', 'launches')}" if sweep.launches else ""
    )
    if sweep.points:
        yield from (f"  {line}" for line in aligned([_HEADINGS, *_cells(sweep)]))
    for sentence in sentences(sweep):
        yield f"  {sentence}"


def _cells(sweep: Sweep) -> list[tuple[str, ...]]:
    return [
        (
            str(point.batch_size),
            wording.milliseconds(point.p50_ms),
            wording.interval(point.p50_ms) if point.fit else "",
            wording.milliseconds(point.p99_ms),
            wording.interval(point.p99_ms) if point.fit else "",
            wording.number(point.throughput_per_s),
            str(point.samples),
        )
        for point in sweep.points
    ]


def _line(fit: SweepFit) -> str:
    fixed, each = (wording.with_interval(ms, "") for ms in (fit.fixed_ms, fit.per_image_ms))
    formula = f"t(B) = {fixed} ms + B * {each} ms"
    off = f"largest residual {wording.percent(fit.largest_residual)}"
    if fit.linear:
        return f"{formula}, {off}"
    return f"non-linear: {formula} does not describe it ({off}); between the points, interpolate"
