"""The report's figures as real tables; every `n/a` says why where it stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from optcli.report import classes, engines, layers_text, wording
from optcli.report.html.tags import Child, Markup, tag
from optcli.report.rows import Row, accuracy_label, batch_sizes, fastest_fp32, rows
from optcli.results import Accuracy, Latency, Report, VariantReport
from optcli.results.layers import Layers
from optcli.statistics import needed

_ALWAYS = ("p50 ms", "p95 ms", "p99 ms", "images/s", "speed-up")
_MOST_CLASSES = 200
_SIGNS = {"accept": "✓", "reject": "✕", "inconclusive": "?"}


def chip(said: str, outcome: str) -> Markup:
    """A verdict: a sign beside its colour."""
    return tag("span", f"{_SIGNS.get(outcome, '')} {said}".strip(), class_=f"chip {outcome}")


def table(heads: list[tuple[str, bool]], body: list[Markup], name: str) -> Markup:
    """A table in a box that scrolls by itself; `heads` are names and whether they stand left."""
    cells = (tag("th", head, scope="col", class_="left" if left else None) for head, left in heads)
    made = tag("table", tag("thead", tag("tr", *cells)), tag("tbody", *body))
    return tag("div", made, class_="scroll", tabindex="0", role="region", aria_label=name)


def results(report: Report, batch_size: int | None) -> Markup:
    """One row per variant at one batch size; the first size also shows what failed or was skipped."""
    label = accuracy_label(report)
    first = batch_size == batch_sizes(report)[0]
    right = [label] if label and first else []
    right += ["change"] if label and label != "SQNR" and first else []
    heads = [("variant", True), ("runtime", True), ("precision", True), ("size", False)]
    found = {row.variant: row for row in rows(report, batch_size)}
    limits = ["vs fp32"] if fastest_fp32(report) else []
    limits += ["device ms"] if any(row.device for row in found.values()) else []
    limits += ["GOP", "of peak"] if any(row.operations for row in found.values()) else []
    figures = (*_ALWAYS, *limits, *right)
    heads += [(name, False) for name in figures]
    heads += [("verdict", True)] if first else []
    body = []
    for name, variant in report.variants.items():
        if name in found:
            body.append(_row(report, found[name], variant, batch_size, figures, first))
        elif first:
            body.append(_missing(name, variant, len(heads)))
    title = f"Results at batch size {batch_size}" if batch_size else "Results"
    return table(heads, body, title)


def layers(found: Layers) -> Markup:
    """The layers that add most error, the worst first, each with one thing to try."""
    heads, *body = layers_text.markdown(found)
    left = (False, False, True, True, True, True, True)
    made = []
    for row in body:
        cells = zip(row, left, strict=True)
        made.append(tag("tr", *(tag("td", cell, class_="left" if at else None) for cell, at in cells)))
    return table(list(zip(heads, left, strict=True)), made, "Layers")


def per_class(accuracy: Accuracy) -> Markup:
    """The metric class by class; of very many classes those that lost most."""
    made = [
        tag("tr", *(tag("td", cell) for cell in row)) for row in classes.rows(accuracy, _MOST_CLASSES)
    ]
    return table([(head, False) for head in classes.HEADS], made, "Classes")


def engine_layers(rows: Sequence[Sequence[str]]) -> Markup:
    """An engine's layers with the precision and the tactic of each, in the order in which they run."""
    made = [tag("tr", *(tag("td", cell, class_="left") for cell in row)) for row in rows]
    return table([(head, True) for head in engines.HEADS], made, "Layers of the engine")


def _row(
    report: Report,
    row: Row,
    variant: VariantReport,
    batch_size: int | None,
    figures: Sequence[str],
    first: bool,
) -> Markup:
    latency = next((each for each in variant.on_host if each.batch_size == batch_size), None)
    cells: list[Child] = [
        tag("th", row.variant, scope="row", class_="left"),
        tag("td", row.runtime, class_="left"),
        tag("td", row.precision, class_="left"),
        tag("td", row.size),
        tag("td", _known(row.p50, _why_not(latency, 0.5)), _below(row.p50_interval)),
        tag("td", _known(row.p95, _why_not(latency, 0.95)), _below(row.p95_interval)),
        tag("td", _known(row.p99, _why_not(latency, 0.99)), _below(row.p99_interval)),
        tag("td", row.rate),
        tag("td", _known(row.speedup, _not_compared(latency)), _below(row.speedup_interval)),
    ]
    if "vs fp32" in figures:
        cells.append(tag("td", _known(row.fp32, _not_compared(latency)), _below(row.fp32_interval)))
    rest = {
        "device ms": row.device or wording.NONE,
        "GOP": row.operations,
        "of peak": f"{row.share} {row.share_interval}".strip(),
        "change": row.change,
    }
    more = [name for name in figures[len(_ALWAYS) :] if name != "vs fp32"]
    cells += [tag("td", rest.get(name, row.accuracy)) for name in more]
    if first:
        outcome = "none" if row.verdict == "baseline" else row.outcome
        cells.append(tag("td", chip(row.verdict, outcome), class_="left"))
    best = row.variant == report.recommended
    return tag("tr", *cells, class_="best" if best else None)


def _missing(name: str, variant: VariantReport, columns: int) -> Markup:
    required = variant.required and variant.status == "skipped"
    outcome = "reject" if variant.status == "failed" or required else "none"
    return tag(
        "tr",
        tag("th", name, scope="row", class_="left"),
        tag("td", variant.reason or "no reason given", colspan=str(columns - 2), class_="left wraps"),
        tag("td", chip(variant.status, outcome), class_="left"),
    )


def _known(shown: str, why: str) -> Markup | str:
    """A figure; where there is none, why is its tooltip."""
    return shown if shown != wording.NONE else tag("abbr", shown, title=why)


def _why_not(latency: Latency | None, q: float) -> str:
    """Why there is no such percentile."""
    if latency is None:
        return "not measured"
    return f"n={latency.samples}, needs {needed(q)}" if latency.samples < needed(q) else "not known"


def _not_compared(latency: Latency | None) -> str:
    if latency is None:
        return "not measured"
    if not latency.fit:
        return "other work disturbed it: measure again when the machine is quiet"
    return "not measured beside it, or the other one was disturbed"


def _below(interval: str) -> Markup | None:
    return tag("small", interval) if interval else None


def details(report: Report) -> Markup | None:
    """What else was measured: one row per variant, batch size and region, flags in full."""
    body = []
    regions = any(variant.on_device for variant in report.variants.values())
    for name, variant in report.variants.items():
        for row in variant.latency:
            figures = (row.mean_ms, row.cpu_ms, row.import_ms, row.load_ms, row.first_ms)
            cells = [wording.NONE if each is None else wording.number(each) for each in figures]
            peak = row.peak_memory_bytes
            body.append(
                tag(
                    "tr",
                    tag("th", name, scope="row", class_="left"),
                    tag("td", str(row.batch_size)),
                    *([tag("td", row.region, class_="left")] if regions else []),
                    tag("td", str(row.threads)),
                    tag("td", str(row.samples)),
                    *(tag("td", each) for each in cells),
                    tag("td", wording.NONE if peak is None else wording.megabytes(peak)),
                    tag("td", "; ".join(flag.text for flag in row.flags), class_="left wraps"),
                )
            )
    names = (
        "batch",
        "threads",
        "calls",
        "mean ms",
        "CPU ms",
        "import ms",
        "load ms",
        "first ms",
        "memory",
    )
    heads = [("variant", True), *((name, False) for name in names), ("flags", True)]
    if regions:
        heads.insert(2, ("region", True))
    return table(heads, body, "More figures") if body else None


def environment(values: Mapping[str, Any]) -> Markup:
    """Everything that the report knows of the machine, nested names joined."""
    pairs = (tag("dt", name) + tag("dd", value) for name, value in _flat(values))
    return tag("dl", *(Markup(pair) for pair in pairs))


def _flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
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
