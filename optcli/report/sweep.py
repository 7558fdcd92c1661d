"""Batch sweeps: tables with the fitted line and the budget, and the operating curve of variants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from optcli.errors import counted
from optcli.report import wording
from optcli.report.html import marks
from optcli.report.html.marks import HEIGHT, PANEL, Area, Dot, Scale, from_zero, spanning
from optcli.report.html.tags import Markup, join, tag
from optcli.results import Estimate, Report, Sweep, SweepFit, SweepPoint, VariantReport
from optcli.results.document import Cell, Chart, Column, Items, Section, Table
from optcli.results.outcomes import SERVICE_LEVEL

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


@dataclass(frozen=True)
class _Budget:
    """A service level: the percentile it bounds and the bound in milliseconds."""

    percentile: str
    limit_ms: float


def _budget_of(report: Report) -> _Budget | None:
    """The service level that the build judged, p99 before p95 before p50; None where there is none."""
    limits: dict[str, float] = {}
    for variant in report.variants.values():
        for verdict in variant.verdicts:
            if verdict.limit is not None:
                limits[verdict.name] = verdict.limit
        if variant.sweep is not None and variant.sweep.budget is not None:
            limits.setdefault(f"{SERVICE_LEVEL}p99_ms", variant.sweep.budget.p99_ms)
    for percentile in ("p99", "p95", "p50"):
        if (limit := limits.get(f"{SERVICE_LEVEL}{percentile}_ms")) is not None:
            return _Budget(percentile, limit)
    return None


@dataclass(frozen=True)
class _SizePoint:
    """One batch size; `ms` is None where there were too few calls for the percentile that is drawn."""

    batch_size: int
    ms: Estimate | None
    throughput_per_s: float
    fit: bool = True

    def inside(self, budget: _Budget | None) -> bool:
        """Whether the whole interval surely keeps the budget; true where there is none."""
        if budget is None:
            return True
        high = self.ms.high if self.ms is not None and self.fit else None
        return high is not None and high <= budget.limit_ms


@dataclass(frozen=True)
class _Curve:
    """One variant over its batch sizes, ascending; `index` is its place in the report."""

    index: int
    name: str
    points: Sequence[_SizePoint]
    line: SweepFit | None

    @property
    def known(self) -> list[tuple[_SizePoint, Estimate]]:
        """The points that have a latency to draw."""
        return [(point, point.ms) for point in self.points if point.ms is not None]


def _curves_of(report: Report, percentile: str) -> list[_Curve]:
    """Every variant that was measured: its sweep where it has one, else what the table has."""
    fitted = percentile == "p50"  # what the line of a sweep goes through
    return [
        _Curve(index, name, points, variant.sweep.fit if variant.sweep and fitted else None)
        for index, (name, variant) in enumerate(report.variants.items())
        if (points := _points(variant, percentile))
    ]


def _points(variant: VariantReport, percentile: str) -> list[_SizePoint]:
    rows = variant.sweep.points if variant.sweep and variant.sweep.points else variant.on_host
    points = [
        _SizePoint(
            row.batch_size, getattr(row, f"{percentile}_ms", None), row.throughput_per_s, row.fit
        )
        for row in rows
    ]
    return sorted(points, key=lambda point: point.batch_size)


def _largest(curve: _Curve, budget: _Budget) -> str:
    """In words, from the measured batch sizes alone: larger ones may do as well."""
    inside = []
    for point in curve.points:
        if not point.inside(budget):
            break
        inside.append(point)
    bound = f"{budget.limit_ms:g} ms ({budget.percentile})"
    if not curve.known:
        return f"too few calls for {budget.percentile} to tell which batch size keeps {bound}"
    if not inside:
        return f"no measured batch size surely keeps {bound}"
    best = inside[-1]
    more = ", the largest measured" if best is curve.points[-1] else ""
    rate = wording.number(best.throughput_per_s)
    return f"up to batch size {best.batch_size}{more} inside {bound}: {rate} images a second"


def _sizes_of(curves: Sequence[_Curve]) -> list[int]:
    """All batch sizes, ascending."""
    return sorted({point.batch_size for curve in curves for point in curve.points})


def operating(report: Report) -> Section:
    """Both curves of every variant, and what they say in words; empty where nothing was measured.

    A variant's sweep is drawn where it has one, else what the table has. With a budget, latency is
    the percentile that the budget bounds, else p50, also where there are too few calls for that one.
    """
    budget = _budget_of(report)
    curves = _curves_of(report, budget.percentile) if budget else []
    if len({point.batch_size for curve in curves for point, _ in curve.known}) < 2:
        budget, curves = None, _curves_of(report, "p50")
    sizes = _sizes_of(curves)
    if len(sizes) < 2:
        line = "Only one batch size was measured: latency.batch_sizes or latency.sweep asks for more."
        return Section("Operating curve", [Items([line] if sizes else [])], on_pages=True)
    limit = f" The budget is {budget.percentile} {budget.limit_ms:g} ms." if budget else ""
    return Section(
        "Operating curve",
        [Chart(lambda: _drawn(curves, budget)), Items(_lines(report, curves, budget))],
        f"What a larger batch costs in latency and brings in throughput.{limit} Whiskers are 95 %"
        " intervals.",
        on_pages=True,
    )


def _drawn(curves: Sequence[_Curve], budget: _Budget | None) -> Markup:
    percentile = budget.percentile if budget else "p50"
    panels = (
        marks.figure(
            f"{percentile} against batch size",
            lambda width: _latency(min(width, PANEL), curves, percentile, budget),
        ),
        marks.figure(
            "Throughput against batch size",
            lambda width: _throughput(min(width, PANEL), curves, budget),
        ),
    )
    names = marks.legend([(curve.index, curve.name) for curve in curves])
    hint = tag("p", "Hollow: not surely inside the budget.", class_="hint") if budget else None
    if any(curve.line and curve.line.linear for curve in curves):
        hint = tag("p", "Dotted: the line t(B) fitted to a sweep.", class_="hint")
    return join([tag("div", *panels, class_="pair"), names, hint])


def _latency(width: int, curves: Sequence[_Curve], percentile: str, budget: _Budget | None) -> Markup:
    area = Area(44, width - 14, 32, HEIGHT - 40)
    sizes = _sizes_of(curves)
    x = spanning(sizes, area.left + 8, area.right - 4, log=True)
    values = [value for curve in curves for _, ms in curve.known for value in marks.ends(ms)]
    y = spanning([*values, *([budget.limit_ms] if budget else [])], area.bottom, area.top)
    shapes = marks.over_sizes(area, x, y, sizes, f"{percentile}, milliseconds")
    if budget:
        shapes += marks.bound(area, y, budget.limit_ms, f"budget {budget.limit_ms:g} ms")
    for place, curve in enumerate(curves):
        # Curves stand aside by some pixels, so that whiskers of one size do not cover each other.
        aside = (place - (len(curves) - 1) / 2) * min(3.0, 16.0 / len(curves))
        points = [
            Dot(
                point.batch_size,
                ms.value,
                f"{curve.name}, batch {point.batch_size}: {percentile} {wording.with_interval(ms)}",
                hollow=not point.inside(budget),
                interval=ms,
            )
            for point, ms in curve.known
        ]
        shapes.append(marks.dots(curve.index, x, y, points, aside=aside))
        if curve.line is not None and curve.line.linear:
            shapes.append(marks.series(curve.index, _fitted(curve.line, x, y, sizes)))
    return marks.picture(width, HEIGHT, f"{percentile} against batch size", *shapes)


def _throughput(width: int, curves: Sequence[_Curve], budget: _Budget | None) -> Markup:
    area = Area(44, width - 14, 32, HEIGHT - 40)
    sizes = _sizes_of(curves)
    x = spanning(sizes, area.left + 8, area.right - 4, log=True)
    values = [point.throughput_per_s for curve in curves for point in curve.points]
    y = spanning(values, area.bottom, area.top)
    y = y if y.log else from_zero(values, area.bottom, area.top)
    shapes = marks.over_sizes(area, x, y, sizes, "images a second")
    for curve in curves:
        points = [
            Dot(
                point.batch_size,
                point.throughput_per_s,
                f"{curve.name}, batch {point.batch_size}:"
                f" {wording.number(point.throughput_per_s)} images a second",
                hollow=not point.inside(budget),
            )
            for point in curve.points
        ]
        shapes.append(marks.dots(curve.index, x, y, points))
    return marks.picture(width, HEIGHT, "Throughput against batch size", *shapes)


def _fitted(line: SweepFit, x: Scale, y: Scale, sizes: Sequence[int]) -> Markup:
    """The fitted line; a curve where the axes are logarithmic."""
    low, high = sizes[0], sizes[-1]
    steps = [low * (high / low) ** (index / 24) for index in range(25)]
    points = [(x(size), y(line.fixed_ms.value + size * line.per_image_ms.value)) for size in steps]
    return marks.path(points, "fitted")


def _lines(report: Report, curves: Sequence[_Curve], budget: _Budget | None) -> list[str]:
    """What the budget allows, and what the fits say, in words."""
    lines = []
    drawn = {curve.name: curve for curve in curves}
    for name, variant in report.variants.items():
        if variant.sweep is not None:
            lines += [f"{name}: {sentence}" for sentence in sentences(variant.sweep)]
        elif budget is not None and name in drawn:
            lines.append(f"{name}: {_largest(drawn[name], budget)}")
    return lines
