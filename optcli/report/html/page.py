"""The page of one build."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from optcli.errors import counted
from optcli.report import engines, layers_text, wording
from optcli.report.by_device import views
from optcli.report.html import marks, pictures, tables
from optcli.report.html.curves import budget_of
from optcli.report.html.distributions import Quantiles, distributions
from optcli.report.html.document import document, folded, section
from optcli.report.html.marks import Area
from optcli.report.html.operating import operating
from optcli.report.html.scales import from_zero
from optcli.report.html.search import search
from optcli.report.html.tags import Markup, join, tag
from optcli.report.html.tradeoff import tradeoff
from optcli.report.notes import Notes, advice, ending
from optcli.report.rows import accuracy_label, batch_sizes
from optcli.report.serving_line import serving_line
from optcli.results import Report

_MOST_BARS = 16
_PHASES = {
    "data": "reading and preparing data",
    "latency": "measuring latency",
    "sweep": "measuring over batch sizes",
    "accuracy": "judging accuracy",
}


_CODES = {
    0: ("done", "accept"),
    1: ("rejected", "reject"),
    3: ("something required is missing", "reject"),
    4: ("a pass or runner failed", "reject"),
    5: ("inconclusive", "inconclusive"),
}
_GLOSSARY = (
    ("p50, p95, p99", "half of the calls, 95 %, 99 % took no longer"),
    ("[low, high]", "the 95 % interval: what the value may be, by how much launches and rounds differ"),
    ("n/a (n=…, needs …)", "too few calls for this percentile: it is left out rather than guessed"),
    ("speed-up", "how many times as fast as the baseline, from rounds of the same launches"),
    ("vs fp32", "the same over the fastest variant that computes the unchanged network in fp32"),
    ("no clear gain", "the interval does not tell whether it is faster; advice, it blocks nothing"),
    ("noisy", "other work had the processors for over 8 % of the time of the rounds that count"),
    ("fluctuating", "the middle half of the calls spreads over more than 20 % of the median"),
    ("environment not fit", "too few launches were quiet to draw a conclusion: measure again"),
)  # fmt: skip


def page(
    report: Report,
    quantiles: Quantiles,
    of_devices: Mapping[str, Quantiles] | None = None,
    images: Mapping[str, bytes] | None = None,
) -> str:
    """The report of a build as one HTML file. `quantiles` may be empty: curves are left out then.

    `of_devices` are those of further devices, by name, `images` the JPEGs of its pictures, by file.
    """
    (first, its_notes), *others = views(report)
    further = [
        device_section(each, notes, (of_devices or {}).get(str(each.device), {}), number)
        for number, (each, notes) in enumerate(others, 2)
    ]
    seen = pictures.shown(report, images or {})
    return document(
        f"{report.recipe.name}: optcli report",
        _header(report),
        tag("main", *_sections(first, others, its_notes, quantiles, further, seen)),
        footer=[tag("p", each) for each in its_notes.footer],
        images=seen is not None,
    )


def _header(report: Report) -> Markup:
    meaning, outcome = _CODES.get(report.exit_code, (f"exit code {report.exit_code}", "reject"))
    count = len(report.variants)
    parts = [counted(count, "variant"), report.finished.replace("T", " ")]
    cpu = report.environment.get("cpu", {}).get("model")
    cores = report.environment.get("cores")
    parts += [f"{cpu}, {counted(cores, 'core')}"] if cpu and cores else []
    title = tag("div", tag("h1", report.recipe.name), tables.chip(meaning, outcome), class_="title")
    why = tag("p", ending(report), class_="hint") if report.exit_reason else None
    return tag("header", title, tag("p", " · ".join(parts), class_="hint"), why)


def _sections(
    report: Report,
    others: Sequence[tuple[Report, Notes]],
    report_notes: Notes,
    quantiles: Quantiles,
    further: Sequence[Markup],
    seen: Markup | None,
) -> Iterator[Markup]:
    """`others` are the reports of further devices, `further` their sections, `seen` has pictures."""
    yield _answer(report, [advice(each) for each, _ in others])
    yield _results(report, report_notes)
    yield from filter(None, [seen])
    yield from further
    yield from _distributions(report, quantiles)
    yield from _operating(report)
    label, chart = accuracy_label(report), tradeoff(report)
    if chart is not None:
        lead = "Left is faster. Whiskers are 95 % intervals, the dotted steps the Pareto frontier."
        yield section(f"{label} against latency", lead, chart, id_="tradeoff")
    if report.tuning is not None:
        yield search(report.tuning)
    yield section("Where the build's time went", None, timings(report), id_="time")
    yield section(
        "How it was measured",
        None,
        tag("ul", *(tag("li", line) for line in report_notes.footer)),
        folded("Environment", tables.environment(report.environment)),
        folded(
            "What the words mean",
            tag("dl", *([tag("dt", word), tag("dd", meaning)] for word, meaning in _GLOSSARY)),
        ),
        id_="environment",
    )


def _answer(report: Report, further: Sequence[str]) -> Markup:
    """The recommendation, and below it those of further devices."""
    below = [tag("p", text) for text in further if text]
    if report.recommended is None:
        text = advice(report) or "There is no recommendation."
        answer = tag("p", text)
        return tag("section", answer, *_serving(report), *below, class_="answer none", id="answer")
    answer, figures = tag("p", advice(report)), _figures(report)
    return tag("section", answer, *_serving(report), figures, *below, class_="answer", id="answer")


def _serving(report: Report) -> Iterator[Markup]:
    line = serving_line(report)
    if line:
        yield tag("p", line, class_="hint")


def _figures(report: Report) -> Markup | None:
    """The recommended variant in four figures."""
    variant = report.variants.get(report.recommended or "")
    if variant is None or not variant.latency or variant.artifact is None:
        return None
    artifact = variant.artifact
    row = min(variant.on_host, key=lambda each: each.batch_size)
    figures = [
        (wording.times(row.speedup), f"as fast as {report.baseline} {wording.interval(row.speedup)}"),
        (f"{wording.milliseconds(row.p50_ms)} ms", f"p50 at batch size {row.batch_size}"),
        (wording.megabytes(artifact.size_bytes), f"{artifact.precision} {artifact.format}"),
    ]  # fmt: skip
    accuracy = variant.accuracy
    if accuracy is not None and accuracy.metric is not None:
        change = wording.change(accuracy)
        moved = f"{change} points" if change not in ("", "0.00") else "unchanged"
        label = accuracy_label(report) or accuracy.metric
        figures.append((wording.percent(accuracy.value), f"{label}, {moved}"))
    items = (tag("li", tag("b", figure), tag("span", caption)) for figure, caption in figures)
    return tag("ul", *items, class_="figures")


def _results(report: Report, report_notes: Notes) -> Markup:
    sizes = batch_sizes(report)
    parts: list[Markup] = []
    for size in sizes:
        shown = tables.results(report, size)
        name = f"Batch size {size}" if size else "Results"
        parts.append(shown if size == sizes[0] else folded(name, shown))
    named = "Results" if report.device is None else f"Results on {report.device}"
    title = f"{named} at batch size {sizes[0]}" if sizes[0] else named
    for name, lines in sorted(report_notes.sections, key=lambda section: section[0] != "Verdicts"):
        parts.append(tag("h3", name))
        parts.append(tag("ul", *(tag("li", line) for line in lines)))
    parts += [
        folded(f"Where the error of {name} starts", tables.layers(variant.layers))
        for name, variant in report.variants.items()
        if variant.layers is not None and layers_text.rows(variant.layers)
    ]
    judged = {name: each.accuracy for name, each in report.variants.items() if each.accuracy}
    classes = tables.per_class(judged, report.baseline)
    if classes is not None:
        metric = next(each.metric for each in judged.values() if each.per_class)
        parts.append(folded(f"{metric} by class: each variant, and its change in points", classes))
    parts += [
        folded(f"Layers of the engine {name}", tables.engine_layers(rows))
        for name, variant in report.variants.items()
        if (rows := engines.layers(variant))
    ]
    more = tables.details(report)
    if more is not None:
        parts.append(folded("More figures: processor time, loading, memory, flags", more))
    return section(title, None, *parts, id_="results")


def _distributions(report: Report, quantiles: Quantiles) -> Iterator[Markup]:
    sizes = [size for size in batch_sizes(report) if size is not None]
    if not sizes:
        return
    first = distributions(report, sizes[0], quantiles)
    others = (
        folded(f"Batch size {size}", distributions(report, size, quantiles)) for size in sizes[1:]
    )
    lead = (
        f"Every timed call at batch size {sizes[0]}. A curve with two peaks means that the machine ran"
        " at two speeds."
    )
    if not any(quantiles.values()):
        lead = f"Percentiles at batch size {sizes[0]}; the raw samples are not beside this report."
    yield section("Latency of each artifact", lead, first, *others, id_="distributions")


def _operating(report: Report) -> Iterator[Markup]:
    if not any(variant.latency or variant.sweep for variant in report.variants.values()):
        return
    chart = operating(report)
    name = "Operating curve"
    if chart is None:
        said = "Only one batch size was measured: latency.batch_sizes or latency.sweep asks for more."
        yield section(name, said, id_="operating")
        return
    budget = budget_of(report)
    words = f"The budget is {budget.percentile} {budget.limit_ms:g} ms. " if budget else ""
    lead = f"What a larger batch costs in latency and brings in throughput. {words}"
    yield section(name, f"{lead}Whiskers are 95 % intervals.".strip(), chart, id_="operating")


def device_section(report: Report, its_notes: Notes, quantiles: Quantiles, number: int) -> Markup:
    """What one device gave: its tables, notes and machine. `number` counts devices from 1."""
    return section(
        f"Results on {report.device}",
        its_notes.recommendation or None,
        *_device_tables(report, quantiles),
        *_device_notes(its_notes),
        folded("How it was measured", tag("ul", *(tag("li", line) for line in its_notes.footer))),
        folded("Environment", tables.environment(report.environment)),
        id_=f"device-{number}",
    )


def _device_tables(report: Report, quantiles: Quantiles) -> Iterator[Markup]:
    for size in batch_sizes(report):
        if size is not None:
            yield tag("h3", f"Batch size {size}")
        yield tables.results(report, size)
        if size is not None:
            shown = distributions(report, size, quantiles)
            yield folded(f"Latency of each artifact at batch size {size}", shown)
    more = tables.details(report)
    if more is not None:
        yield folded("More figures: processor time, loading, memory, flags", more)


def _device_notes(its_notes: Notes) -> Iterator[Markup]:
    for name, lines in its_notes.sections:
        yield tag("h3", name)
        yield tag("ul", *(tag("li", line) for line in lines))


@dataclass(frozen=True)
class Bar:
    """One thing that took time: a step, or a phase of the whole build."""

    name: str
    seconds: float
    failed: bool = False


def timings(report: Report) -> Markup:
    """The chart, and what came from the store; where nothing ran, what each variant once took."""
    bars, reused = _bars(report)
    total = wording.seconds(report.started, report.finished)
    took = "" if total is None else f"The build took {wording.duration(total)}. "
    kept = f"{counted(reused, 'step')} came from the store." if reused else ""
    if not bars:
        bars = [Bar(name, each.build_s) for name, each in report.variants.items() if each.build_s]
        bars.sort(key=lambda bar: -bar.seconds)
        kept += " The bars say what it once took to make each variant." if bars else ""
    hint = tag("p", took + kept, class_="hint") if took or kept else None
    if not bars:
        return join([hint])
    shown = bars[:_MOST_BARS]
    rest = bars[_MOST_BARS:]
    if rest:
        shown.append(Bar(f"{len(rest)} shorter ones", sum(bar.seconds for bar in rest)))

    return join([marks.figure("Where the build's time went", lambda width: _draw(width, shown)), hint])


def _bars(report: Report) -> tuple[list[Bar], int]:
    """Steps that ran, each once, and phases; how many steps were in the store already."""
    steps: dict[str, Bar] = {}
    reused = set()
    for name, variant in report.variants.items():
        for number, step in enumerate(variant.steps):
            if step.seconds is not None:
                # The source comes first, and is that of all variants.
                label = step.name if number == 0 else f"{name} › {step.name}"
                steps.setdefault(step.key, Bar(label, step.seconds, step.status == "failed"))
            elif step.status == "cached":
                reused.add(step.key)
    phases = [
        Bar(_PHASES[name], seconds)
        for name, seconds in report.took_s.items()
        if name in _PHASES and seconds >= 0.1
    ]
    bars = [*steps.values(), *phases]
    return sorted(bars, key=lambda bar: -bar.seconds), len(reused)


def _draw(width: int, bars: list[Bar]) -> Markup:
    wide = width == marks.WIDE
    left = 230.0 if wide else 0.0
    row = 26.0 if wide else 42.0
    area = Area(left, width - 78, 4, 4 + row * len(bars))
    x = from_zero([bar.seconds for bar in bars], area.left, area.right)
    shapes = []
    for place, bar in enumerate(bars):
        top = area.top + place * row
        length = max(2.0, x(bar.seconds) - area.left)
        name = marks.shortened(bar.name, left - 12 if wide else width - 10)
        at = (left - 8, top + 15, "end") if wide else (0, top + 12, "start")
        shapes.append(marks.text(at[0], at[1], name, at[2], "name"))
        y = top + (2 if wide else 18)
        about = tag("title", f"{bar.name}: {wording.duration(bar.seconds)}")
        kind = "bar failed" if bar.failed else "bar"
        shapes.append(tag("rect", about, x=area.left, y=y, width=length, height=18, rx=3, class_=kind))
        took = wording.duration(bar.seconds) + (" (failed)" if bar.failed else "")
        shapes.append(marks.text(area.left + length + 6, y + 13, took, kind="tick"))
    return marks.picture(width, area.bottom + 4, "Where the build's time went", *shapes)
