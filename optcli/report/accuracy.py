"""What each artifact costs in accuracy: a table, and for each artifact figures, verdicts and layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from optcli.errors import counted
from optcli.report import junit as junit_xml
from optcli.report import wording
from optcli.report.junit import Case
from optcli.results import Accuracy, Report, VariantReport, Verdict
from optcli.results.document import Cell, Column, Document, Items, Part, Section, Table, table_of_texts
from optcli.results.outcomes import ACCURACY_VERDICTS, ClassFigure, LayerError, Layers

_MOST_CLASSES = 200
_WORST = 10


@dataclass(frozen=True)
class _JudgedVariant:
    """One artifact that was judged."""

    name: str
    variant: VariantReport
    accuracy: Accuracy
    is_baseline: bool


def document(report: Report, *, per_class: bool = False) -> Document:
    """For every kind of reader; `per_class` adds the metric of every class, where it has one."""
    judged = [
        _JudgedVariant(name, variant, variant.accuracy, name == report.baseline)
        for name, variant in report.variants.items()
        if variant.accuracy is not None
    ]
    missing = [
        f"{name}: {variant.status}, no accuracy: {variant.reason or 'see the report'}"
        for name, variant in report.variants.items()
        if variant.accuracy is None
    ]
    return Document(
        title=f"Accuracy of {report.recipe.name}",
        sections=[
            Section("", [Table(_columns(judged), judged)]),
            *(_of_variant(row, report.baseline, per_class) for row in judged),
            Section("Not judged", [Items(missing)], tone="reject"),
        ],
    )


def _columns(judged: Sequence[_JudgedVariant]) -> list[Column[_JudgedVariant]]:
    metric = next((row.accuracy.metric for row in judged if row.accuracy.metric), None)
    labelled = [
        Column[_JudgedVariant](metric or "", lambda row: Cell(wording.percent(row.accuracy.value))),
        Column[_JudgedVariant](
            "change", lambda row: Cell("" if row.is_baseline else wording.change(row.accuracy))
        ),
        Column[_JudgedVariant]("lost, gained", _sides),
    ]
    return [
        Column("variant", lambda row: Cell(row.name), align="left"),
        Column(
            "runtime", lambda row: Cell(str((row.variant.runner or {}).get("name", ""))), align="left"
        ),
        *(labelled if metric else ()),
        Column("SQNR", _apart),
        Column("verdict", _verdict, align="left"),
    ]


def _sides(row: _JudgedVariant) -> Cell:
    one = row.accuracy
    return Cell("" if row.is_baseline or one.regressed is None else f"{one.regressed}, {one.improved}")


def _apart(row: _JudgedVariant) -> Cell:
    return Cell("reference" if row.is_baseline else wording.difference(row.accuracy.output_error))


def _verdict(row: _JudgedVariant) -> Cell:
    text, tone = wording.verdict(row.variant, row.is_baseline)
    return Cell(text, tone=tone)


def _of_variant(row: _JudgedVariant, baseline: str, per_class: bool) -> Section:
    """Its figures and verdicts; folded where all is well."""
    runner = row.variant.runner or {}
    what = (runner.get("name"), runner.get("precision"), row.accuracy.isa)
    verdicts = [each for each in row.variant.verdicts if each.name in ACCURACY_VERDICTS]
    return Section(
        f"{row.name}  ({', '.join(str(each) for each in what if each)})",
        list(_parts(row, baseline, per_class)),
        folded=all(each.outcome == "accept" for each in verdicts),
    )


def _parts(row: _JudgedVariant, baseline: str, per_class: bool) -> Iterator[Part]:
    yield Items(list(_lines(row, baseline)))
    if per_class:
        yield _classes(row.accuracy)
        if not row.accuracy.per_class:
            yield Items([f"{row.accuracy.metric or 'outputs'}: no metric by class"])
    layers = row.variant.layers
    if layers is not None:
        table = table_of_layers(layers)
        yield Items([_about_layers(layers, is_empty=not table.rows)])
        yield table


def _lines(row: _JudgedVariant, baseline: str) -> Iterator[str]:
    accuracy = row.accuracy
    if accuracy.metric is not None:
        different = accuracy.samples if accuracy.distinct is None else accuracy.distinct
        repeated = f", {different} of them different" if different < accuracy.samples else ""
        value = wording.percent(accuracy.value)
        yield f"{accuracy.metric} {value} on {accuracy.samples} samples{repeated}"
    if not row.is_baseline:
        yield from _against(accuracy, baseline)
    else:
        for figure, values in accuracy.figures.items():
            yield f"{figure} {wording.percent(values.baseline)}"
    for verdict in row.variant.verdicts:
        judging = verdict.name in ACCURACY_VERDICTS
        sound = verdict.outcome == "accept" and verdict.name != "decoding"
        if not judging or (row.is_baseline and sound):
            continue
        named = verdict.name in ("accuracy", "outputs")
        yield f"{verdict.outcome}: {'' if named else f'{verdict.name}: '}{verdict.reason}"


def _against(accuracy: Accuracy, baseline: str) -> Iterator[str]:
    """The change, figure by figure."""
    if accuracy.drop is not None:
        sides = ""
        if accuracy.regressed is not None:
            sides = f": {accuracy.regressed} lost, {accuracy.improved} gained"
        yield f"change {_change(accuracy)}{sides}"
    for figure, values in accuracy.figures.items():
        points = wording.points(values.value - values.baseline)
        yield f"{figure} {wording.percent(values.value)} ({points})"
    # One sample of a class says nothing of the class.
    several = [each for each in accuracy.classes if each.samples > 1]
    if several:
        changed = [
            f"{each.label} ({each.regressed} lost, {each.improved} gained of {each.samples})"
            for each in several
        ]
        yield f"classes that changed most: {', '.join(changed)}"
    moved = accuracy.scores
    if moved is not None and moved.equal is not None:
        yield (
            f"scores: {moved.count} {moved.of} with {moved.threshold:g} or more, the baseline"
            f" {moved.baseline}; as many at {moved.equal:.3g}"
        )
    if accuracy.output_error is not None:
        error = accuracy.output_error
        largest = "" if error.max_abs is None else f", largest difference {error.max_abs:.3g}"
        same = ""
        if accuracy.agreement is not None:
            same = f", the same class for {wording.percent(accuracy.agreement)}"
        yield f"outputs against {baseline}: {wording.difference(error)}{largest}{same}"
        faded = sum(part.faded_count for part in error.parts)
        if faded:
            yield f"{faded} channels or classes that hardly vary in {baseline} are constant here"


def _change(accuracy: Accuracy) -> str:
    drop = accuracy.drop
    assert drop is not None
    if drop.low is None or drop.high is None:
        return f"{wording.change(accuracy)} points"
    ends = (drop.low, drop.high) if accuracy.better == "lower" else (-drop.high, -drop.low)
    return f"{wording.change(accuracy)} points [{wording.points(ends[0])}, {wording.points(ends[1])}]"


def _classes(accuracy: Accuracy) -> Table[Sequence[str]]:
    """The metric class by class, beside the baseline's."""
    rows = [
        (
            str(each.label),
            str(each.samples),
            wording.percent(each.value),
            wording.percent(each.baseline),
            _of_class(each),
        )
        for each in accuracy.per_class
    ]
    return table_of_texts(("class", "samples", "value", "baseline", "change"), rows)


def table_of_classes(
    judged: Mapping[str, Accuracy], baseline: str, most: int = _MOST_CLASSES
) -> Table[Sequence[str]]:
    """All variants side by side, a class a row; no rows where there are no classes.

    A variant's cell holds its value and the change from the baseline's. Of more than `most` classes
    those in which a variant lost most.
    """
    figures = {name: {each.label: each for each in one.per_class} for name, one in judged.items()}
    figures = {name: of_class for name, of_class in figures.items() if of_class}
    labels = sorted({label for of_class in figures.values() for label in of_class})

    def worst(label: int) -> float:
        figures_of_class = [of_class[label] for of_class in figures.values() if label in of_class]
        return min(each.value - (each.baseline or 0.0) for each in figures_of_class)

    shown = sorted(sorted(labels, key=worst)[:most]) if len(labels) > most else labels
    cells: list[Sequence[str]] = []
    for label in shown:
        figures_beside = [of_class.get(label) for of_class in figures.values()]
        samples = next(each.samples for each in figures_beside if each is not None)
        values = [
            ""
            if each is None
            else f"{wording.percent(each.value)} {'' if name == baseline else _of_class(each)}".strip()
            for name, each in zip(figures, figures_beside, strict=True)
        ]
        cells.append((str(label), str(samples), *values))
    return table_of_texts(("class", "samples", *figures), cells)


def _of_class(figure: ClassFigure) -> str:
    return "" if figure.baseline is None else wording.points(figure.value - figure.baseline)


def _about_layers(layers: Layers, *, is_empty: bool) -> str:
    """What the table of layers shows, or why there is none."""
    if not is_empty:
        why = f"; {layers.reason}" if layers.reason else ""
        return (
            "where the error starts: signal to noise of what layers add by themselves (own) and in all"
            f" (so far), on {layers.samples} samples, the worst of {layers.compared} tensors{why}"
        )
    if layers.reason:
        return f"where the error starts: {layers.reason}"
    return f"no layer adds an error, of {counted(layers.compared, 'tensor')}"


def table_of_layers(layers: Layers) -> Table[Sequence[str]]:
    """The layers that add most, the worst first; no rows where none adds an error."""
    heads = ("own", "so far", "tensor", "layer", "operator", "shape", "try")
    rows = [_of_layer(row) for row in layers.rows if row.rank != float("inf")][:_WORST]
    return table_of_texts(heads, rows, range(2, len(heads)))


def _of_layer(row: LayerError) -> tuple[str, ...]:
    has_channel = row.kind == "weight" and row.channel is not None
    tensor = f"{row.kind}, worst channel {row.channel}" if has_channel else row.kind
    layer = (row.node or row.tensor, row.operator, "x".join(map(str, row.shape)))
    return (_db(row.own_db, row), _db(row.sqnr_db, row), tensor, *layer, row.advice)


def _db(value: float | None, row: LayerError) -> str:
    if not row.finite:
        return "NaN"
    return "equal" if value is None else f"{value + 0.0:.1f} dB"


def junit(report: Report) -> str:
    """JUnit XML: a test case per artifact and verdict; inconclusive ones are skipped."""
    name = report.recipe.name
    return junit_xml.junit(f"optcli verify-accuracy {name}", report.started, list(_cases(report)))


def _cases(report: Report) -> Iterator[Case]:
    for name, variant in report.variants.items():
        for verdict in variant.verdicts:
            if verdict.name in ACCURACY_VERDICTS:
                place, figures = f"{report.recipe.name}.{name}", "\n".join(_figures(variant, verdict))
                # Some CI systems show the text of a failure alone.
                failed = f"{verdict.reason}\n{figures}"
                yield junit_xml.judged(place, verdict.name, verdict, figures, failed)
    for name, variant in report.variants.items():
        if variant.status == "failed":
            yield Case(f"{report.recipe.name}.{name}", "evaluation", "error", variant.reason or "")


def _figures(variant: VariantReport, verdict: Verdict) -> Iterator[str]:
    """Estimate, interval, margin and count, a line each."""
    for label, value in (("drop", verdict.actual), ("limit", verdict.limit)):
        if value is not None:
            yield f"{label} {value:.6f}"
    if verdict.interval is not None:
        yield f"interval [{verdict.interval[0]:.6f}, {verdict.interval[1]:.6f}]"
    if variant.accuracy is not None:
        yield f"samples {variant.accuracy.samples}"
    if verdict.isa is not None:
        yield f"in {verdict.runner} on {verdict.isa}"
