"""What each artifact costs in accuracy, as Markdown and as JUnit XML, for pull requests and CI."""

from __future__ import annotations

from collections.abc import Iterator

from optcli.report import junit as junit_xml
from optcli.report import layers_text, wording
from optcli.report.junit import Case
from optcli.report.markdown_text import escaped, table
from optcli.results import Report, VariantReport, Verdict
from optcli.results.layers import Layers
from optcli.results.outcomes import ACCURACY_VERDICTS


def markdown(report: Report) -> str:
    """A table of GitHub's Markdown, then every verdict that is not an acceptance."""
    return "\n".join(_lines(report)) + "\n"


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


def _lines(report: Report) -> Iterator[str]:
    yield f"## Accuracy of {escaped(report.recipe.name)}"
    yield ""
    judged = {name: v for name, v in report.variants.items() if v.accuracy is not None}
    metrics = [v.accuracy.metric for v in judged.values() if v.accuracy and v.accuracy.metric]
    columns = ["variant", "runtime", metrics[0] if metrics else "SQNR", "change", "lost, gained"]
    columns += ["SQNR", "verdict"] if metrics else ["verdict"]
    cells = (_cells(name, variant, report, bool(metrics)) for name, variant in judged.items())
    yield from table(columns, cells, left=range(len(columns)))
    notes = [
        f"{name}: {each.name} {each.outcome}: {each.reason}"
        for name, variant in judged.items()
        for each in variant.verdicts
        if each.outcome != "accept" and each.name in ACCURACY_VERDICTS
    ]
    notes += [
        f"{name} {variant.status}: {variant.reason}"
        for name, variant in report.variants.items()
        if variant.accuracy is None
    ]
    if notes:
        yield ""
        yield from (f"- {escaped(note)}" for note in notes)
    for name, variant in judged.items():
        if variant.layers is not None:
            yield from _layers(name, variant.layers)


def _layers(name: str, layers: Layers) -> Iterator[str]:
    """A table of the layers that add most error."""
    yield ""
    yield f"### Where the error of {escaped(name)} starts"
    yield ""
    if rows := layers_text.rows(layers):
        heads = layers_text.HEADS
        yield from table(heads, rows, left=range(len(heads)))
    if layers.reason:
        yield escaped(layers.reason)


def _cells(name: str, variant: VariantReport, report: Report, labelled: bool) -> list[str]:
    accuracy = variant.accuracy
    assert accuracy is not None
    is_baseline = name == report.baseline
    runner = (variant.runner or {}).get("name", "")
    apart = "reference" if is_baseline else wording.difference(accuracy.output_error)
    sides = "" if accuracy.regressed is None else f"{accuracy.regressed}, {accuracy.improved}"
    change = "" if is_baseline else wording.change(accuracy)
    verdict = wording.verdict(variant, is_baseline)[0]
    value = wording.percent(accuracy.value) if labelled else apart
    cells = [name, str(runner), value, change, "" if is_baseline else sides]
    return [*cells, apart, verdict] if labelled else [*cells, verdict]
