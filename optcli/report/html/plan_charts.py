"""The pictures of a plan: latency and throughput by batch size and by rate."""

from __future__ import annotations

from collections.abc import Sequence

from optcli.report import wording
from optcli.report.html import marks
from optcli.report.html.marks import HEIGHT, PANEL, Area, Dot
from optcli.report.html.scales import Scale, from_zero, spanning
from optcli.report.html.tags import Markup, join, tag
from optcli.results.plan import BatchPoint, Plan, RatePoint

# A percentile far over the promise would flatten everything below it.
_MOST_OVER = 2.5


def by_batch(plan: Plan) -> Markup:
    """Latency and throughput against the batch size, the promise drawn in."""
    name = f"{plan.drawn} against batch size"
    panels = (
        marks.figure(name, lambda width: _latency(min(width, PANEL), plan)),
        marks.figure(
            "Throughput against batch size", lambda width: _throughput(min(width, PANEL), plan)
        ),
    )
    grown = [each for each in plan.by_batch if each.latency_ms is None]
    sizes = ", ".join(str(each.batch) for each in grown)
    hint = f"At batch {sizes} the queue grows without bound. " if grown else ""
    hint += "Filled: the recommended batch size."
    return join([tag("div", *panels, class_="pair"), tag("p", hint, class_="hint")])


def by_rate(plan: Plan) -> Markup:
    """Latency against the rate, with the chosen point and the promise."""
    return marks.figure(f"{plan.drawn} against the rate", lambda width: _rates(width, plan))


def _latency(width: int, plan: Plan) -> Markup:
    area = Area(48, width - 14, 32, HEIGHT - 40)
    points = [
        Dot(
            each.batch,
            each.latency_ms,
            f"batch {each.batch}: {plan.drawn} {each.latency_ms:.3g} ms,"
            f" {'kept' if each.kept else 'broken'}",
            hollow=not _chosen(plan, each),
        )
        for each in plan.by_batch
        if each.latency_ms is not None
    ]
    limit = plan.slo_ms.get(plan.drawn)
    x = spanning(_sizes(plan), area.left + 8, area.right - 4, log=True)
    y = _milliseconds(area, points, limit)
    name = f"{plan.drawn} against batch size"
    return marks.picture(
        width,
        HEIGHT,
        name,
        *marks.over_sizes(area, x, y, _sizes(plan), f"{plan.drawn}, milliseconds"),
        *_promise(area, y, limit),
        marks.dots(0, x, y, points),
    )


def _throughput(width: int, plan: Plan) -> Markup:
    area = Area(48, width - 14, 32, HEIGHT - 40)
    points = [
        Dot(
            each.batch,
            each.capacity_per_s,
            f"batch {each.batch}: {wording.number(each.capacity_per_s)} requests a second",
            hollow=not _chosen(plan, each),
        )
        for each in plan.by_batch
    ]
    x = spanning(_sizes(plan), area.left + 8, area.right - 4, log=True)
    planned = plan.planned_rate_per_s
    y = from_zero([*(each.y for each in points), planned or 0.0], area.bottom, area.top)
    shapes = marks.over_sizes(area, x, y, _sizes(plan), "requests a second at full load")
    if planned is not None:
        at = y(planned)
        shapes.append(marks.line(area.left, at, area.right, at, "one"))
        name = f"planned {wording.number(planned)}/s"
        shapes.append(marks.text(area.right, at - 5, name, "end", "tick"))
    drawn = marks.dots(1, x, y, points)
    return marks.picture(width, HEIGHT, "Throughput against batch size", *shapes, drawn)


def _rates(width: int, plan: Plan) -> Markup:
    area = Area(52, width - 14, 32, HEIGHT - 40)
    points = [
        Dot(
            each.rate_per_s,
            each.latency_ms,
            f"{wording.number(each.rate_per_s)} a second: {plan.drawn} {each.latency_ms:.3g} ms,"
            f" load {each.utilisation:.2f}",
            hollow=not _planned(plan, each),
        )
        for each in plan.by_rate
        if each.latency_ms is not None
    ]
    limit = plan.slo_ms.get(plan.drawn)
    x = from_zero([each.rate_per_s for each in plan.by_rate], area.left, area.right)
    y = _milliseconds(area, points, limit)
    shapes = marks.axes(area, x, y, "requests a second", f"{plan.drawn}, milliseconds")
    shapes += [*_promise(area, y, limit), marks.dots(0, x, y, points)]
    grows = [each.rate_per_s for each in plan.by_rate if each.latency_ms is None]
    if grows:
        at = x(min(grows))
        shapes.append(marks.line(at, area.top, at, area.bottom, "frontier"))
        shapes.append(marks.text(at - 6, area.bottom - 8, "the queue grows", "end", "tick"))
    return marks.picture(width, HEIGHT, f"{plan.drawn} against the rate", *shapes)


def _sizes(plan: Plan) -> list[int]:
    return [each.batch for each in plan.by_batch]


def _milliseconds(area: Area, points: Sequence[Dot], limit: float | None) -> Scale:
    """From zero to the largest value, but not far beyond the promise; markers stop at the edge."""
    top = max((each.y for each in points), default=1.0)
    if limit is not None:
        top = max(limit, min(top, _MOST_OVER * limit))
    return from_zero([top], area.bottom, area.top)


def _promise(area: Area, y: Scale, limit: float | None) -> list[Markup]:
    return [] if limit is None else marks.bound(area, y, limit, f"promised {limit:g} ms")


def _chosen(plan: Plan, point: BatchPoint) -> bool:
    return plan.recommended is not None and point.batch == plan.recommended.batch


def _planned(plan: Plan, point: RatePoint) -> bool:
    planned = plan.planned_rate_per_s or 0.0
    return abs(point.rate_per_s - planned) < 1e-6 * planned
