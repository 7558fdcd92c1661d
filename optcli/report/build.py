"""A build's report: what to serve, tables by batch size, what to distrust, and the pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from optcli.errors import counted
from optcli.report import columns, engines, sweep, tuning, wording
from optcli.report.accuracy import table_of_classes, table_of_layers
from optcli.report.html.distributions import Quantiles, distributions
from optcli.report.html.operating import operating
from optcli.report.html.pictures import pictures
from optcli.report.html.timings import timings
from optcli.report.html.tradeoff import tradeoff
from optcli.report.notes import advice, ending, footer, notes, serving_line
from optcli.report.rows import accuracy_label, batch_sizes, every_row, rows
from optcli.results import Report
from optcli.results.document import Document, Items, Names, Picture, Section, Table, table_of_texts

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
            Section("Where the time went", [Picture(lambda: timings(report))]),
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
            [Picture(lambda size=size: distributions(report, size, quantiles))],  # type: ignore[misc]
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
        f"{accuracy_label(report)} against latency", [Picture(lambda: tradeoff(report) or "")], lead
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
