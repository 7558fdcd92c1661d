"""A plan for the terminal: the answer, its figures, a small operating curve, what breaks first."""

from __future__ import annotations

from collections.abc import Iterator

from optcli.report import wording
from optcli.report.terminal import aligned
from optcli.results.plan import Configuration, Plan, PlanCurve, PriorityLatency

_BAR = 32
_SIGN = {True: "keeps it", False: "breaks it"}


def plan_text(plan: Plan) -> str:
    """The whole plan as lines."""
    return "\n".join(line.rstrip() for line in _lines(plan)) + "\n"


def _lines(plan: Plan) -> Iterator[str]:
    yield f"{plan.name}: {asked(plan)}"
    yield f"  {curve(plan.curve)}"
    if plan.curve.padded_from:
        yield f"  {padded(plan.curve)}"
    yield ""
    yield plan.sentence
    yield plan.reason
    if plan.recommended is not None:
        yield ""
        yield from (f"  {line}" for line in aligned(list(rows(plan, plan.recommended)), left=(0, 1)))
    if plan.by_batch:
        yield ""
        yield from _by_batch(plan)
    if plan.by_rate:
        yield ""
        yield from _by_rate(plan)
    if plan.breaks_first:
        yield ""
        yield "When the traffic grows"
        yield from (
            f"  {each.factor:g} times: {each.then}{_reached(each.p95_ms)}" for each in plan.breaks_first
        )
    yield from parts(plan)
    for title, items in (
        ("What would keep the promise", plan.would),
        ("Warnings", plan.warnings),
        ("Advice", plan.advice),
    ):
        if items:
            yield ""
            yield title
            yield from (f"  - {each.text}" for each in items)
    yield ""
    yield f"Mode: {plan.mode.reason}."


def asked(plan: Plan) -> str:
    """The promise and the traffic in one line."""
    slo = " and ".join(f"{name} <= {limit:g} ms" for name, limit in plan.slo_ms.items())
    rate = f"{wording.number(plan.rate_per_s)} requests a second"
    if abs(plan.planned_rate_per_s - plan.rate_per_s) > 1e-6 * plan.rate_per_s:
        rate += f", planned for {wording.number(plan.planned_rate_per_s)} at the model"
    reserve = f"headroom {plan.headroom:.0%}, utilisation at most {plan.utilisation:g}"
    return ", ".join(part for part in (rate, slo, reserve) if part)


def curve(known: PlanCurve) -> str:
    """Where the curve is from, and its line."""
    text = f"curve: {known.source}"
    if known.fixed_ms is not None and known.per_image_ms is not None:
        off = f", largest residual {known.largest_residual:.1%}" if known.largest_residual else ""
        text += f"; t(B) = {known.fixed_ms:.4g} ms + B * {known.per_image_ms:.4g} ms{off}"
    if known.largest_within_slo is not None:
        text += f"; the largest known batch inside the promise is {known.largest_within_slo}"
        if known.largest_by_the_line is not None:
            text += f" ({known.largest_by_the_line} by the line)"
    if known.measured:
        text += "; the simulation draws from the measured calls"
    return text


def padded(known: PlanCurve) -> str:
    """Which batches are padded to a compiled batch size, in a sentence; empty where none is."""
    what = wording.padded(known.padded_from)
    return what and f"The server pads {what}: they take as long as the larger size."


def rows(plan: Plan, one: Configuration) -> Iterator[tuple[str, str]]:
    """Names and values of the recommended configuration."""
    semantics = {
        "oldest-age": "sent when its oldest request has waited long enough, as in Triton",
        "sealed": "closed by time, also while the model is busy, as in Ray Serve",
    }[one.semantics]
    yield "batch size", f"at most {one.batch}, {semantics}"
    yield "longest wait", f"{one.wait_ms:g} ms{_least(one)}"
    yield "instances", f"{one.instances} with headroom, {one.instances_without_headroom} without"
    yield (
        "machines",
        f"{one.machines}, {_count(one.instances_per_machine, 'instance')} each{_inside(one)}",
    )
    if one.queue_cap is not None:
        yield "queue", f"{one.queue_cap} requests, then {one.on_full}; timeout {one.timeout_ms:.4g} ms"
    for name in ("p50", "p95", "p99"):
        yield name, _percentile(plan, one, name)
    busy = "" if one.busy is None else f"; workers compute {one.busy:.0%} of the time"
    yield (
        "utilisation",
        f"{one.utilisation:.3g}, {one.utilisation_with_headroom:.3g} with headroom{busy}",
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
    yield "in flight", f"at most {one.max_in_flight} requests, waiting and running"
    if one.drop_share:
        yield "dropped", wording.percent(one.drop_share)
    if one.cost_per_1000 is not None:
        yield "cost", f"{wording.number(one.cost_per_1000)} for 1,000 inferences"
    if one.energy_wh_per_1000 is not None:
        yield "energy", f"{wording.number(one.energy_wh_per_1000)} Wh for 1,000 inferences"
    if one.stages is not None:
        s = one.stages
        yield (
            "mean latency",
            (
                f"wait {s.wait_ms:.3g} + queue {s.queue_ms:.3g} + compute {s.compute_ms:.3g}"
                f" + overhead {s.overhead_ms:.3g} ms"
            ),
        )
    if plan.runner_up is not None:
        other = plan.runner_up
        yield (
            "runner-up",
            (
                f"batch {other.batch}, wait {other.wait_ms:g} ms,"
                f" {_count(other.instances, 'instance')}: {other.lost_because}"
            ),
        )


def _least(one: Configuration) -> str:
    if one.least_wait_ms is None:
        return f" (delay budget {one.longest_wait_ms:.3g} ms)" if one.longest_wait_ms else ""
    return f" (under {one.least_wait_ms:.3g} ms the queue grows without bound)"


def _inside(one: Configuration) -> str:
    return f", {one.concurrency} calls in parallel inside each" if one.concurrency > 1 else ""


def _percentile(plan: Plan, one: Configuration, name: str) -> str:
    value, interval = getattr(one, f"{name}_ms"), getattr(one, f"{name}_interval_ms")
    text = f"{value:.4g} ms"
    if interval is not None:
        text += f" [{interval[0]:.4g}, {interval[1]:.4g}]"
    limit = plan.slo_ms.get(name)
    return text if limit is None else f"{text} of {limit:g} ms"


def _reached(p95_ms: float | None) -> str:
    return "" if p95_ms is None else f" (p95 {p95_ms:.3g} ms)"


def _by_batch(plan: Plan) -> Iterator[str]:
    instances = plan.recommended.instances if plan.recommended else 1
    yield f"Batch sizes, on {_count(instances, 'instance')}"
    rows = [("batch", "call ms", f"{plan.drawn} ms", "full load/s", "the promise")]
    rows += [
        (
            str(each.batch),
            f"{each.call_ms:.3g}",
            "grows" if each.latency_ms is None else f"{each.latency_ms:.3g}",
            f"{wording.number(each.capacity_per_s)}",
            _SIGN[each.kept] + (" <" if _is_chosen(plan, each.batch) else ""),
        )
        for each in plan.by_batch
    ]
    yield from (f"  {line}" for line in aligned(rows, left=(4,)))


def _is_chosen(plan: Plan, batch: int) -> bool:
    return plan.recommended is not None and plan.recommended.batch == batch


def _by_rate(plan: Plan) -> Iterator[str]:
    """The drawn percentile against the rate as bars; `|` stands at its limit."""
    known = [each.latency_ms for each in plan.by_rate if each.latency_ms is not None]
    limit = plan.slo_ms.get(plan.drawn)
    top = max([*known, *([limit] if limit else [])], default=1.0)
    top = min(top, 2 * limit) if limit else top
    yield f"{plan.drawn} against the rate" + (f", promised {limit:g} ms" if limit else "")
    cells = [
        (
            f"{wording.number(each.rate_per_s)}/s",
            "grows" if each.latency_ms is None else f"{each.latency_ms:.3g} ms",
            _bar(each.latency_ms, limit, top),
            "planned" if abs(each.rate_per_s - plan.planned_rate_per_s) < 1e-9 else "",
        )
        for each in plan.by_rate
    ]
    yield from (f"  {line}".rstrip() for line in aligned(cells, left=(2, 3)))


def _bar(value: float | None, limit: float | None, top: float) -> str:
    filled = _BAR if value is None else max(1, min(_BAR, round(_BAR * value / top)))
    bar = "#" * filled + " " * (_BAR - filled)
    if limit is None:
        return bar
    at = min(_BAR - 1, round(_BAR * limit / top))
    return f"{bar[:at]}|{bar[at + 1 :]}"


def parts(plan: Plan) -> Iterator[str]:
    """Levels, autoscaling, cameras, priorities and what may wait: titles after empty lines."""
    if plan.levels:
        yield ""
        yield "Levels"
        yield from (
            f"  {wording.number(each.rate_per_s)}/s for {wording.duration(each.seconds)}:"
            f" {_count(each.instances, 'instance')}"
            for each in plan.levels
        )
    if plan.autoscaling is not None:
        scale = plan.autoscaling
        yield ""
        yield "Autoscaling"
        yield f"  {scale.sentence}"
        yield (
            f"  target: {scale.target_in_flight:.3g} requests in flight an instance"
            f" (load {scale.target_utilisation:g})"
        )
    if plan.video is not None:
        video = plan.video
        yield ""
        yield "Cameras"
        yield (
            f"  {_count(video.cameras, 'camera')}, {_every(video.stride)}, a queue of one for each,"
            f" {video.on_full}: drops {wording.percent(video.drop_share)}"
        )
        yield (
            f"  with twice the frames: drops {wording.percent(video.drop_share_in_bursts)}, p95"
            f" {video.p95_ms_in_bursts:.3g} ms; a stride of {video.burst_stride} keeps the load low"
        )
    if plan.priorities:
        yield ""
        yield "Priorities"
        apart = plan.recommended is not None and plan.recommended.semantics == "sealed"
        yield from (f"  {_of_priority(each, apart=apart)}" for each in plan.priorities)
    if plan.batch_work is not None and plan.slo_ms:
        work = plan.batch_work
        yield ""
        yield "What may wait"
        yield (
            f"  batches of {work.batch} on {_count(work.instances, 'instance')}:"
            f" {wording.number(work.items)} items in {work.hours:.3g} h,"
            f" {work.machine_hours_per_day:.3g} machine-hours a day"
        )


def _of_priority(each: PriorityLatency, *, apart: bool) -> str:
    """`apart`: each priority is served by instances of its own."""
    one = each.configuration
    named = f"{each.name} ({each.share:.0%})"
    if apart and one is None:
        return f"{named}: no configuration of its own keeps the promise"
    said = (
        f"{named}: p50 {_known(each.p50_ms)}, p95 {_known(each.p95_ms)}, p99 {_known(each.p99_ms)} ms"
    )
    if one is None:
        return said
    return (
        f"{said}; {_count(one.instances, 'instance')} of its own, batch {one.batch}, wait"
        f" {one.wait_ms:.4g} ms"
    )


def _known(value: float | None) -> str:
    return wording.NONE if value is None else f"{value:.3g}"


def _every(stride: int) -> str:
    ordinal = {1: "", 2: "second ", 3: "third "}.get(stride, f"{stride}th ")
    return f"every {ordinal}frame"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"
