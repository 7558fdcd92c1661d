"""A plan: the answer, its tables, and charts of latency and throughput by batch size and rate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from optcli.errors import counted
from optcli.report import wording
from optcli.report.html import marks
from optcli.report.html.marks import HEIGHT, PANEL, Area, Dot, from_zero, spanning
from optcli.report.html.tags import Markup, join, tag
from optcli.results.document import (
    Chart,
    Document,
    Items,
    Names,
    Section,
    Table,
    table_of_texts,
)
from optcli.results.plan import BatchPoint, Configuration, Plan, PlanCurve, PriorityLatency, RatePoint

_BAR = 32
_SIGN = {True: "keeps it", False: "breaks it"}
_OUTCOMES = {
    "kept": ("keeps the promise", "accept"),
    "not-kept": ("nothing keeps the promise", "reject"),
    "inconclusive": ("measured on a busy machine", "inconclusive"),
}
_GLOSSARY = (
    ("t(B)", "the time of one call with a batch of B"),
    ("utilisation", "the rate over the rate of full batches on all instances (rho)"),
    ("headroom", "the share of traffic above the planned rate that is kept free"),
    ("[low, high]", "the 95 % interval over simulations with different seeds"),
    ("grows", "the queue grows from beginning to end: more requests arrive than are answered"),
)


def document(plan: Plan) -> Document:
    """For every kind of reader."""
    label, outcome = _OUTCOMES[plan.outcome]
    return Document(
        title=plan.name,
        label=label,
        outcome=outcome,
        hint=_question(plan),
        sections=list(_sections(plan)),
        answer=plan.sentence,
        reasons=[plan.reason],
        figures=list(_figures(plan, plan.recommended)) if plan.recommended else (),
    )


def _sections(plan: Plan) -> Iterator[Section]:
    one = plan.recommended
    if plan.by_batch:
        name = f"Batch sizes, on {counted(one.instances if one else 1, 'instance')}"
        lead = "What a larger batch costs in latency and brings in throughput, all else as chosen."
        yield Section(name, [Chart(lambda: by_batch(plan)), _by_batch(plan)], lead)
    if plan.by_rate:
        limit = plan.slo_ms.get(plan.drawn)
        name = f"{plan.drawn} against the rate" + (f", promised {limit:g} ms" if limit else "")
        lead = "The recommended configuration at other rates; the chosen point is filled."
        yield Section(name, [Chart(lambda: by_rate(plan), _bars(plan))], lead)
    yield Section("Waits", [_waits(plan)])
    yield Section("Priorities", [Items([_of_priority(each) for each in plan.priorities])])
    if one is not None:
        yield Section("Configuration", [Names(list(_configuration(plan, one)))])
    yield Section("Notes", [Items([each.text for each in plan.notes])])
    glossary = Section("What the words mean", [Names(_GLOSSARY)], folded=True, on_pages=True)
    yield Section("How it was planned", [Names(list(_basis(plan))), glossary])


def _basis(plan: Plan) -> Iterator[tuple[str, str]]:
    yield "curve", _curve(plan.curve)
    if padded := wording.padded(plan.curve.padded_from):
        yield "curve", f"the server pads {padded}: they take as long as the larger size"
    yield "mode", f"{plan.mode.mode}, {plan.mode.reason}"
    yield "seed", str(plan.seed)


def _figures(plan: Plan, one: Configuration) -> Iterator[tuple[str, str]]:
    yield str(one.batch), f"largest batch, wait {one.wait_ms:g} ms"
    yield str(one.instances), f"instance{'' if one.instances == 1 else 's'}"
    for name, limit in list(plan.slo_ms.items())[:1]:
        yield f"{getattr(one, f'{name}_ms'):.3g} ms", f"{name} of {limit:g} ms"
    yield f"{wording.number(one.max_rate_per_s)}/s", "highest rate inside the promise"
    if one.cost_per_1000 is not None:
        yield wording.number(one.cost_per_1000), "cost of 1,000 inferences"


def _question(plan: Plan) -> str:
    """The promise and the traffic in one line."""
    slo = " and ".join(f"{name} <= {limit:g} ms" for name, limit in plan.slo_ms.items())
    came, planned = plan.rate_per_s, plan.planned_rate_per_s
    if came is None or planned is None:
        return slo or "no promise on latency"
    rate = f"{wording.number(came)} requests a second"
    if abs(planned - came) > 1e-6 * came:
        rate += f", planned for {wording.number(planned)} at the model"
    reserve = f"headroom {plan.headroom:.0%}, utilisation at most {plan.utilisation:g}"
    return ", ".join(part for part in (rate, slo, f"for {plan.target}", reserve) if part)


def _curve(known: PlanCurve) -> str:
    """Where the curve is from, and its line."""
    text = known.source
    if known.fixed_ms is not None and known.per_image_ms is not None:
        off = f", largest residual {known.largest_residual:.1%}" if known.largest_residual else ""
        text += f"; t(B) = {known.fixed_ms:.4g} ms + B * {known.per_image_ms:.4g} ms{off}"
    if known.largest_within_slo is not None:
        text += f"; the largest known batch inside the promise is {known.largest_within_slo}"
    if known.samples_ms:
        text += "; the simulation draws from the measured calls"
    return text


def _configuration(plan: Plan, one: Configuration) -> Iterator[tuple[str, str]]:
    """Names and values of the recommended configuration."""
    semantics = {
        "oldest-age": "sent when its oldest request has waited long enough",
        "sealed": "closed by time, also while the model is busy",
    }[one.semantics]
    yield "batch size", f"at most {one.batch}, {semantics}"
    yield "longest wait", f"{one.wait_ms:g} ms{_least(one)}"
    yield "instances", f"{one.instances}"
    each = counted(one.instances_per_machine, "instance")
    yield "machines", f"{one.machines}, {each} each{_inside(one)}"
    if one.ingresses > 1:
        yield "ingress", f"{one.ingresses} processes, one on each machine"
    waiting = f"at most {one.max_in_flight}, of which {one.queue_cap} wait"
    yield "in flight", f"{waiting}; {one.all_in_time} would all be in time"
    yield "too late", f"after {wording.number(one.timeout_ms or 0)} ms in the queue"
    for name in ("p50", "p95", "p99"):
        yield name, _percentile(plan, one, name)
    busy = "" if one.busy is None else f"; workers compute {one.busy:.0%} of the time"
    yield (
        "utilisation",
        f"{one.utilisation:.2f}, {one.utilisation_with_headroom:.2f} with headroom{busy}",
    )
    if one.mean_batch is not None:
        yield "mean batch", f"{one.mean_batch:.3g}"
    yield (
        "highest rate",
        (
            f"{wording.number(one.max_rate_per_s)} a second inside the promise;"
            f" {wording.number(one.capacity_per_s)} at full load,"
            f" {wording.number(one.rate_at_utilisation_per_s)} at {plan.utilisation:g} of it"
        ),
    )
    if one.cost_per_1000 is not None:
        yield "cost", f"{wording.number(one.cost_per_1000)} for 1,000 inferences"
    yield "usual sum", f"wait, call and overhead are {wording.number(one.sum_ms)} ms, without the queue"


def _least(one: Configuration) -> str:
    if one.least_wait_ms is None:
        return f" (delay budget {wording.number(one.longest_wait_ms or 0)} ms)"
    least = f"{round(one.least_wait_ms, 3):g}"
    return "" if least == "0" else f" (under {least} ms the queue grows without bound)"


def _inside(one: Configuration) -> str:
    return f", {one.concurrency} calls in parallel inside each" if one.concurrency > 1 else ""


def _percentile(plan: Plan, one: Configuration, name: str) -> str:
    value, interval = getattr(one, f"{name}_ms"), getattr(one, f"{name}_interval_ms")
    text = f"{value:.4g} ms"
    if interval is not None:
        text += f" [{interval[0]:.4g}, {interval[1]:.4g}]"
    limit = plan.slo_ms.get(name)
    return text if limit is None else f"{text} of {limit:g} ms"


def _waits(plan: Plan) -> Table[Sequence[str]]:
    """The waits that were asked for side by side."""
    heads = (
        "wait",
        "p50 ms",
        "p95 ms",
        "p99 ms",
        "mean batch",
        "busy",
        "highest rate/s",
        "the promise",
    )
    rows = [
        (
            f"{each.wait_ms:g} ms",
            *(_latency(ms) for ms in (each.p50_ms, each.p95_ms, each.p99_ms)),
            wording.number(each.mean_batch),
            f"{each.busy:.0%}",
            wording.number(each.max_rate_per_s),
            _SIGN[each.kept],
        )
        for each in plan.by_wait
    ]
    return table_of_texts(heads, rows, (0, 7))


def _latency(ms: float | None) -> str:
    return "grows" if ms is None else wording.number(ms)


def _by_batch(plan: Plan) -> Table[Sequence[str]]:
    one = plan.recommended
    latency = f"{plan.drawn} ms" if one else "alone ms"
    rows = [
        (
            str(each.batch),
            wording.number(each.call_ms),
            _latency(each.latency_ms),
            wording.number(each.capacity_per_s),
            (_SIGN[each.kept] if plan.slo_ms else "")
            + (", chosen" if one is not None and one.batch == each.batch else ""),
        )
        for each in plan.by_batch
    ]
    promise = "the promise" if plan.slo_ms else ""
    return table_of_texts(("batch", "call ms", latency, "full load/s", promise), rows, (4,))


def _bars(plan: Plan) -> list[str]:
    """The drawn percentile against the rate as bars; `|` stands at its limit."""
    known = [each.latency_ms for each in plan.by_rate if each.latency_ms is not None]
    limit = plan.slo_ms.get(plan.drawn)
    top = max([*known, *([limit] if limit else [])], default=1.0)
    top = min(top, 2 * limit) if limit else top
    lines = []
    for each in plan.by_rate:
        latency = "grows" if each.latency_ms is None else f"{wording.number(each.latency_ms)} ms"
        planned = "  planned" if each.rate_per_s == plan.planned_rate_per_s else ""
        bar = _bar(each.latency_ms, limit, top)
        lines.append(f"{wording.number(each.rate_per_s):>8}/s  {latency:>9}  {bar}{planned}".rstrip())
    return lines


def _bar(value: float | None, limit: float | None, top: float) -> str:
    filled = _BAR if value is None else max(1, min(_BAR, round(_BAR * value / top)))
    bar = "#" * filled + " " * (_BAR - filled)
    if limit is None:
        return bar
    at = min(_BAR - 1, round(_BAR * limit / top))
    return f"{bar[:at]}|{bar[at + 1 :]}"


def _of_priority(each: PriorityLatency) -> str:
    one = each.configuration
    named = f"{each.name} ({each.share:.0%})"
    if one is None:
        return f"{named}: no configuration of its own keeps the promise"
    return (
        f"{named}: p50 {_known(each.p50_ms)}, p95 {_known(each.p95_ms)}, p99 {_known(each.p99_ms)} ms;"
        f" {counted(one.instances, 'instance')} of its own, batch {one.batch},"
        f" wait {one.wait_ms:.4g} ms"
    )


def _known(value: float | None) -> str:
    return wording.NONE if value is None else wording.number(value)


def by_batch(plan: Plan) -> Markup:
    """Latency and throughput against the batch size, the promise drawn in."""
    name = f"{plan.drawn} against batch size"
    panels = (
        marks.figure(name, lambda width: _latency_marks(min(width, PANEL), plan)),
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


def _latency_marks(width: int, plan: Plan) -> Markup:
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
    y = marks.up_to_promise(area, [each.y for each in points], limit)
    name = f"{plan.drawn} against batch size"
    return marks.picture(
        width,
        HEIGHT,
        name,
        *marks.over_sizes(area, x, y, _sizes(plan), f"{plan.drawn}, milliseconds"),
        *marks.promise(area, y, limit),
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
    y = marks.up_to_promise(area, [each.y for each in points], limit)
    shapes = marks.axes(area, x, y, "requests a second", f"{plan.drawn}, milliseconds")
    shapes += [*marks.promise(area, y, limit), marks.dots(0, x, y, points)]
    grows = [each.rate_per_s for each in plan.by_rate if each.latency_ms is None]
    if grows:
        at = x(min(grows))
        shapes.append(marks.line(at, area.top, at, area.bottom, "frontier"))
        shapes.append(marks.text(at - 6, area.bottom - 8, "the queue grows", "end", "tick"))
    return marks.picture(width, HEIGHT, f"{plan.drawn} against the rate", *shapes)


def _sizes(plan: Plan) -> list[int]:
    return [each.batch for each in plan.by_batch]


def _chosen(plan: Plan, point: BatchPoint) -> bool:
    return plan.recommended is not None and point.batch == plan.recommended.batch


def _planned(plan: Plan, point: RatePoint) -> bool:
    planned = plan.planned_rate_per_s or 0.0
    return abs(point.rate_per_s - planned) < 1e-6 * planned
