"""What each artifact costs in accuracy, as Markdown and as JUnit XML, for pull requests and CI."""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree

from optcli.report import layers_text, wording
from optcli.results import Report, VariantReport, Verdict
from optcli.results.layers import Layers
from optcli.results.outcomes import ACCURACY_VERDICTS

# What XML 1.0 cannot hold.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


def markdown(report: Report) -> str:
    """A table of GitHub's Markdown, then every verdict that is not an acceptance."""
    return "\n".join(_lines(report)) + "\n"


def junit(report: Report) -> str:
    """JUnit XML: a test case per artifact and verdict; inconclusive ones are skipped."""
    cases = [
        (name, verdict)
        for name, variant in report.variants.items()
        for verdict in variant.verdicts
        if verdict.name in ACCURACY_VERDICTS
    ]
    failed = {name: v for name, v in report.variants.items() if v.status == "failed"}
    rejected = [each for _, each in cases if each.blocking and each.outcome == "reject"]
    doubtful = [each for _, each in cases if each.outcome == "inconclusive"]
    suite = ElementTree.Element(
        "testsuite",
        name=_text(f"optcli verify-accuracy {report.recipe.name}"),
        tests=str(len(cases) + len(failed)),
        failures=str(len(rejected)),
        skipped=str(len(doubtful)),
        errors=str(len(failed)),
        timestamp=report.started,
    )
    for name, verdict in cases:
        _case(suite, f"{report.recipe.name}.{name}", report.variants[name], verdict)
    for name, variant in failed.items():
        place = _text(f"{report.recipe.name}.{name}")
        case = ElementTree.SubElement(suite, "testcase", classname=place, name="evaluation")
        ElementTree.SubElement(case, "error", message=_text(variant.reason or ""))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ElementTree.Element, place: str, variant: VariantReport, verdict: Verdict) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname=_text(place), name=_text(verdict.name))
    figures = _text("\n".join([verdict.reason, *_figures(variant, verdict)]))
    if verdict.outcome == "reject" and verdict.blocking:
        ElementTree.SubElement(case, "failure", message=_text(verdict.reason)).text = figures
    elif verdict.outcome == "inconclusive":
        ElementTree.SubElement(case, "skipped", message=_text(verdict.reason))
    else:
        ElementTree.SubElement(case, "system-out").text = figures


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
    yield f"## Accuracy of {_plain(report.recipe.name)}"
    yield ""
    judged = {name: v for name, v in report.variants.items() if v.accuracy is not None}
    metrics = [v.accuracy.metric for v in judged.values() if v.accuracy and v.accuracy.metric]
    columns = ["variant", "runtime", metrics[0] if metrics else "SQNR", "change", "lost, gained"]
    columns += ["SQNR", "verdict"] if metrics else ["verdict"]
    yield f"| {' | '.join(columns)} |"
    yield f"| {' | '.join('---' for _ in columns)} |"
    for name, variant in judged.items():
        yield f"| {' | '.join(_plain(cell) for cell in _cells(name, variant, report, bool(metrics)))} |"
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
        yield from (f"- {_plain(note)}" for note in notes)
    for name, variant in judged.items():
        if variant.layers is not None:
            yield from _layers(name, variant.layers)


def _layers(name: str, layers: Layers) -> Iterator[str]:
    """A table of the layers that add most error."""
    yield ""
    yield f"### Where the error of {_plain(name)} starts"
    yield ""
    for number, cells in enumerate(layers_text.markdown(layers)):
        yield f"| {' | '.join(_plain(cell) for cell in cells)} |"
        if not number:
            yield f"| {' | '.join('---' for _ in cells)} |"
    if layers.reason:
        yield _plain(layers.reason)


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


def _text(value: str) -> str:
    return _CONTROL.sub("?", value)


def _plain(line: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    for sign in "\\|*_`<":
        line = line.replace(sign, f"\\{sign}")
    return " ".join(line.split())
