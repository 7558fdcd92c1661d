"""The report's figures as real tables; every `n/a` says why where it stands."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from optcli.report import class_figures, columns, engines, layers_text, wording
from optcli.report.html.tags import Child, Markup, tag
from optcli.report.rows import batch_sizes, every_row, rows
from optcli.results import Accuracy, Report, VariantReport
from optcli.results.document import Cell, Column, R
from optcli.results.layers import Layers

_CLASSES = {"right": None, "left": "left", "wrapped": "left wraps"}
_MOST_CLASSES = 200
_SIGNS = {"accept": "✓", "reject": "✕", "inconclusive": "?"}


def chip(label: str, outcome: str) -> Markup:
    """A verdict: a sign beside its colour."""
    return tag("span", f"{_SIGNS.get(outcome, '')} {label}".strip(), class_=f"chip {outcome}")


def table(heads: Sequence[tuple[str, bool]], body: Sequence[Markup], name: str) -> Markup:
    """A table in a box that scrolls by itself; `heads` are names and whether they stand left."""
    cells = (tag("th", head, scope="col", class_="left" if left else None) for head, left in heads)
    element = tag("table", tag("thead", tag("tr", *cells)), tag("tbody", *body))
    return tag("div", element, class_="scroll", tabindex="0", role="region", aria_label=name)


def table_of(shown: Sequence[Column[R]], body: Iterable[R], name: str) -> Markup:
    """A table of columns, the first of which names the rows."""
    return table(_heads(shown), [_line(shown, row) for row in body], name)


def results(report: Report, batch_size: int | None) -> Markup:
    """One row per variant at one batch size; the first size also shows what failed or was skipped."""
    first = batch_size == batch_sizes(report)[0]
    measured = {row.name: row for row in rows(report, batch_size)}
    shown = columns.of_results(report, list(measured.values()), first=first)
    body = []
    for name, variant in report.variants.items():
        if name in measured:
            best = "best" if name == report.recommended else None
            body.append(_line(shown, measured[name], best))
        elif first:
            body.append(_missing(name, variant, len(shown)))
    title = f"Results at batch size {batch_size}" if batch_size else "Results"
    return table(_heads(shown), body, title)


def layers(of_variant: Layers) -> Markup:
    """The layers that add most error, the worst first, each with one thing to try."""
    return of_texts(layers_text.HEADS, layers_text.rows(of_variant), "Layers", layers_text.LEFT)


def per_class(judged: Mapping[str, Accuracy], baseline: str) -> Markup | None:
    """The metric class by class, all variants in one table; of very many classes those that lost most.

    None where no variant has figures of classes.
    """
    heads, rows = class_figures.together(judged, baseline, _MOST_CLASSES)
    return of_texts(heads, rows, "Classes") if rows else None


def engine_layers(rows: Sequence[Sequence[str]]) -> Markup:
    """An engine's layers with the precision and the tactic of each, in the order in which they run."""
    return of_texts(engines.HEADS, rows, "Layers of the engine", range(len(engines.HEADS)))


def of_texts(
    heads: Sequence[str], rows: Iterable[Sequence[str]], name: str, left: Collection[int] = ()
) -> Markup:
    """A table of texts; `left` are the columns that stand left."""
    sides = ["left" if place in left else None for place in range(len(heads))]
    lines = [
        tag("tr", *(tag("td", cell, class_=side) for cell, side in zip(row, sides, strict=True)))
        for row in rows
    ]
    return table(
        [(head, side is not None) for head, side in zip(heads, sides, strict=True)], lines, name
    )


def _heads(shown: Sequence[Column[R]]) -> list[tuple[str, bool]]:
    # The first column names the rows, at the left.
    return [(column.heading(), column.left or not place) for place, column in enumerate(shown)]


def _line(shown: Sequence[Column[R]], row: R, kind: str | None = None) -> Markup:
    head, *others = shown
    name = tag("th", head.cell(row).value, scope="row", class_="left")
    return tag("tr", name, *(_cell(column, column.cell(row)) for column in others), class_=kind)


def _cell(column: Column[R], cell: Cell) -> Markup:
    """A cell; where there is no value, why is its tooltip."""
    value: Child = cell.value or (wording.NONE if cell.why else "")
    if cell.tone:
        value = chip(cell.value, "none" if cell.tone == "baseline" else cell.tone)
    elif cell.why and value == wording.NONE:
        value = tag("abbr", value, title=cell.why)
    below = tag("small", cell.interval) if cell.interval else None
    return tag("td", value, below, class_=_CLASSES[column.align])


def _missing(name: str, variant: VariantReport, columns: int) -> Markup:
    required = variant.required and variant.status == "skipped"
    outcome = "reject" if variant.status == "failed" or required else "none"
    return tag(
        "tr",
        tag("th", name, scope="row", class_="left"),
        tag("td", variant.reason or "no reason given", colspan=str(columns - 2), class_="left wraps"),
        tag("td", chip(variant.status, outcome), class_="left"),
    )


def details(report: Report) -> Markup | None:
    """What else was measured: one row per variant, batch size and region, flags in full."""
    measured = [row for row in every_row(report) if row.latency is not None]
    shown = columns.of_details(report, measured)
    return table_of(shown, measured, "More figures") if measured else None


def environment(values: Mapping[str, Any]) -> Markup:
    """Everything that the report knows of the machine, nested names joined."""
    return tag("dl", *([tag("dt", name), tag("dd", value)] for name, value in _flat(values)))


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
