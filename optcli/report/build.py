"""A build's report: what to serve, tables by batch size, what to distrust, where the time went."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from optcli.errors import counted
from optcli.report import columns, engines, sweep, tuning, wording
from optcli.report.accuracy import table_of_classes, table_of_layers
from optcli.report.html import marks
from optcli.report.html.distributions import Quantiles, distributions
from optcli.report.html.marks import Area, from_zero
from optcli.report.html.pictures import pictures
from optcli.report.html.tags import Markup, join, tag
from optcli.report.html.tradeoff import tradeoff
from optcli.report.notes import advice, ending, footer, notes, serving_line
from optcli.report.rows import accuracy_label, batch_sizes, every_row, rows
from optcli.report.sweep import operating
from optcli.results import Report
from optcli.results.document import Chart, Document, Items, Names, Section, Table, table_of_texts

_CODES = {
    0: ("done", "accept"),
    1: ("rejected", "reject"),
    3: ("something required is missing", "reject"),
    4: ("a pass or runner failed", "reject"),
    5: ("inconclusive", "inconclusive"),
}
_MEASURED = "How it was measured"
_TONES = {"Failed or skipped": "reject", "Engines": "none", _MEASURED: "none"}
# Notes that speak of one device's figures.
_OF_ITS_OWN = ("Verdicts", "Doubts about the measurement")
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
_MOST_BARS = 16
_PHASES = {
    "data": "reading and preparing data",
    "latency": "measuring latency",
    "sweep": "measuring over batch sizes",
    "accuracy": "judging accuracy",
}


def document(
    report: Report,
    quantiles: Quantiles | None = None,
    of_devices: Mapping[str, Quantiles] | None = None,
    images: Mapping[str, bytes] | None = None,
) -> Document:
    """For every kind of reader.

    A page draws `quantiles`, those of further devices by name, and `images`, the JPEGs of its pictures
    by file; it leaves out what is not given.
    """
    meaning, outcome = _CODES.get(report.exit_code, (f"exit code {report.exit_code}", "reject"))
    first, *others = report.by_device
    cpu = report.environment.get("cpu", {}).get("model")
    cores = report.environment.get("cores")
    machine = [f"{cpu}, {counted(cores, 'core')}"] if cpu and cores else []
    below = [*map(advice, others), serving_line(report), ending(report)]
    return Document(
        title=report.recipe.name,
        label=meaning,
        outcome=outcome,
        tone="accept" if report.recommended else "",
        hint=" · ".join(
            [counted(len(report.variants), "variant"), report.finished.replace("T", " "), *machine]
        ),
        sections=[
            *_of_devices(report, quantiles or {}, of_devices or {}),
            pictures(report, images or {}),
            *_pictures(report),
            *(tuning.sections(report.tuning, on_pages=True) if report.tuning else ()),
            Section("Where the time went", [Chart(lambda: _timings(report))]),
            Section(
                _MEASURED,
                [_environment(first), Section("What the words mean", [Names(_GLOSSARY)], folded=True)],
                on_pages=True,
            ),
        ],
        answer=advice(first),
        reasons=[line for line in below if line],
        figures=list(_figures(report)),
        footer=footer(first),
    )


def _figures(report: Report) -> Iterator[tuple[str, str]]:
    """The recommended variant in four figures."""
    variant = report.variants.get(report.recommended or "")
    if variant is None or not variant.latency or variant.artifact is None:
        return
    artifact = variant.artifact
    row = min(variant.on_host, key=lambda each: each.batch_size)
    yield wording.times(row.speedup), f"as fast as {report.baseline} {wording.interval(row.speedup)}"
    yield f"{wording.milliseconds(row.p50_ms)} ms", f"p50 at batch size {row.batch_size}"
    yield wording.megabytes(artifact.size_bytes), f"{artifact.precision} {artifact.format}"
    accuracy = variant.accuracy
    if accuracy is not None and accuracy.metric is not None:
        change = wording.change(accuracy)
        moved = f"{change} points" if change not in ("", "0.00") else "unchanged"
        yield wording.percent(accuracy.value), f"{accuracy_label(report) or accuracy.metric}, {moved}"


def _of_devices(
    report: Report, quantiles: Quantiles, of_devices: Mapping[str, Quantiles]
) -> Iterator[Section]:
    """What each device gave, or this machine.

    What an earlier device says of the whole build is left out of a later one's. Verdicts and doubts
    stay: each holds for one device.
    """
    before: set[tuple[str, str]] = set()
    for number, alone in enumerate(report.by_device):
        on = "" if alone.device is None else f" on {alone.device}"
        yield from _results(alone, on)
        for title, lines in {**notes(alone), _MEASURED: footer(alone)}.items():
            new = [line for line in lines if title in _OF_ITS_OWN or (title, line) not in before]
            before |= {(title, line) for line in lines}
            if number or title != _MEASURED:  # of the first device this is the document's footer
                yield Section(f"{title}{on}", [Items(new)], tone=_TONES.get(title, "inconclusive"))
        yield Section(f"More figures{on}", list(_details(alone)), on_pages=True)
        if number:
            yield Section(f"The machine{on}", [_environment(alone)], on_pages=True)
        shown = of_devices.get(str(alone.device), {}) if number else quantiles
        yield from _distributions(alone, shown, on)


def _results(report: Report, on: str) -> Iterator[Section]:
    sizes = batch_sizes(report)
    for size in sizes:
        measured = rows(report, size)
        chosen = next((row for row in measured if row.name == report.recommended), None)
        shown = columns.of_results(report, measured, first=size == sizes[0])
        name = f"Batch size {size}{on}" if size else f"Results{on}"
        yield Section(name, [Table(shown, measured, chosen)])
    for name, variant in report.variants.items():
        if variant.sweep is not None:
            yield sweep.section(f"{name}{on}", variant.sweep)


def _details(report: Report) -> Iterator[Section]:
    """What else is known, folded: layers, classes, engines, and figures that few ask for."""
    for name, variant in report.variants.items():
        if variant.layers is not None:
            layers = table_of_layers(variant.layers)
            yield Section(f"Where the error of {name} starts", [layers], folded=True)
    judged = {name: each.accuracy for name, each in report.variants.items() if each.accuracy}
    metric = next((each.metric for each in judged.values() if each.per_class), "")
    classes = table_of_classes(judged, report.baseline)
    yield Section(f"{metric} by class: each variant, and its change in points", [classes], folded=True)
    for name, variant in report.variants.items():
        every = range(len(engines.HEADS))
        tactics = table_of_texts(engines.HEADS, engines.layers(variant), every)
        yield Section(f"Layers of the engine {name}", [tactics], folded=True)
    measured = [row for row in every_row(report) if row.latency is not None]
    figures = Table(columns.of_details(report, measured), measured)
    yield Section("Processor time, loading, memory, flags", [figures], folded=True)


def _distributions(report: Report, quantiles: Quantiles, on: str) -> Iterator[Section]:
    sizes = [size for size in batch_sizes(report) if size is not None]
    lead = "Every timed call. A curve with two peaks means that the machine ran at two speeds."
    if not any(quantiles.values()):
        lead = "Percentiles; the raw samples are not beside this report."
    parts = [
        Section(
            f"Batch size {size}",
            [Chart(lambda size=size: distributions(report, size, quantiles))],  # type: ignore[misc]
            folded=size != sizes[0],
        )
        for size in sizes
    ]
    yield Section(f"Latency of each artifact{on}", parts, lead)


def _pictures(report: Report) -> Iterator[Section]:
    if any(variant.latency or variant.sweep for variant in report.variants.values()):
        yield operating(report)
    lead = "Left is faster. Whiskers are 95 % intervals, the dotted steps the Pareto frontier."
    yield Section(
        f"{accuracy_label(report)} against latency", [Chart(lambda: tradeoff(report) or "")], lead
    )


def _environment(report: Report) -> Section:
    """Everything that the report knows of the machine."""
    return Section("Environment", [Names(list(_flat(report.environment)))], folded=True)


def _flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Names and values, nested names joined."""
    for name, value in values.items():
        full = f"{above} {name}".strip().replace("_", " ")
        if isinstance(value, Mapping):
            yield from _flat(value, full)
        elif isinstance(value, list | tuple):
            yield full, ", ".join(map(str, value)) or "none"
        elif isinstance(value, bool):
            yield full, "yes" if value else "no"
        else:
            yield full, "not known" if value is None else str(value)


@dataclass(frozen=True)
class _Bar:
    """One thing that took time: a step, or a phase of the whole build."""

    name: str
    seconds: float
    failed: bool = False


def _timings(report: Report) -> Markup:
    """The chart, and what came from the store; where nothing ran, what each variant once took."""
    bars, reused = _bars(report)
    total = wording.seconds(report.started, report.finished)
    took = "" if total is None else f"The build took {wording.duration(total)}. "
    reused_steps = f"{counted(reused, 'step')} came from the store." if reused else ""
    if not bars:
        bars = [_Bar(name, each.build_s) for name, each in report.variants.items() if each.build_s]
        bars.sort(key=lambda bar: -bar.seconds)
        reused_steps += " The bars say what it once took to make each variant." if bars else ""
    hint = tag("p", took + reused_steps, class_="hint") if took or reused_steps else None
    if not bars:
        return join([hint])
    shown = bars[:_MOST_BARS]
    rest = bars[_MOST_BARS:]
    if rest:
        shown.append(_Bar(f"{len(rest)} shorter ones", sum(bar.seconds for bar in rest)))

    return join([marks.figure("Where the build's time went", lambda width: _draw(width, shown)), hint])


def _bars(report: Report) -> tuple[list[_Bar], int]:
    """Steps that ran, each once, and phases; how many steps were in the store already."""
    steps: dict[str, _Bar] = {}
    reused = set()
    for name, variant in report.variants.items():
        for number, step in enumerate(variant.steps):
            if step.seconds is not None:
                # The source comes first, and is that of all variants.
                label = step.name if number == 0 else f"{name} › {step.name}"
                steps.setdefault(step.key, _Bar(label, step.seconds, step.status == "failed"))
            elif step.status == "cached":
                reused.add(step.key)
    phases = [
        _Bar(_PHASES[name], seconds)
        for name, seconds in report.took_s.items()
        if name in _PHASES and seconds >= 0.1
    ]
    bars = [*steps.values(), *phases]
    return sorted(bars, key=lambda bar: -bar.seconds), len(reused)


def _draw(width: int, bars: list[_Bar]) -> Markup:
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
