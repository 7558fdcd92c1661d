"""The gate's answer in the forms that CI systems read.

JUnit XML; workflow commands of GitHub Actions; OpenMetrics text for GitLab's metrics reports; and the
`customSmallerIsBetter` JSON of github-action-benchmark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from xml.etree import ElementTree

from optcli.report.gate.changes import told
from optcli.report.gate.rows import WORDS, causes
from optcli.results.gate import Comparison, GateReport

_LEVELS = {"reject": "error", "inconclusive": "warning"}
# What XML 1.0 cannot hold.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")


def junit(report: GateReport) -> str:
    """JUnit XML: one test case per figure; inconclusive ones are skipped, failed ones carry figures."""
    found = [(name, each) for name, variant in report.variants.items() for each in variant.comparisons]
    blocking = [each for _, each in found if each.blocking]
    suite = ElementTree.Element(
        "testsuite",
        name=f"optcli gate {_text(report.recipe.name)}",
        tests=str(len(found) + len(report.changes)),
        failures=str(sum(each.outcome == "reject" for each in blocking)),
        skipped=str(
            sum(each.outcome == "inconclusive" for _, each in found)
            + sum(each.open for each in report.changes)
        ),
        errors="0",
        timestamp=report.started,
    )
    for name, each in found:
        label = f"{each.name} at batch size {each.batch_size}" if each.batch_size else each.name
        case = ElementTree.SubElement(
            suite, "testcase", classname=_text(f"{report.recipe.name}.{name}"), name=_text(label)
        )
        if each.outcome == "reject" and each.blocking:
            failure = ElementTree.SubElement(case, "failure", message=_text(each.reason))
            failure.text = _text("\n".join([_figures(each), *causes(report.variants[name])]))
        elif each.outcome == "inconclusive":
            ElementTree.SubElement(case, "skipped", message=_text(each.reason))
        else:
            ElementTree.SubElement(case, "system-out").text = _text(f"{each.reason}\n{_figures(each)}")
    for change in report.changes:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname=_text(f"{report.recipe.name}.terms"),
            name=_text(f"{change.kind} {change.place}"),
        )
        if change.open:
            ElementTree.SubElement(case, "skipped", message=_text(told(change)))
        else:
            ElementTree.SubElement(case, "system-out").text = _text(told(change))
    root = ElementTree.Element("testsuites")
    root.append(suite)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def github_annotations(report: GateReport) -> Iterator[str]:
    """Workflow commands of GitHub Actions: one for each figure that does not pass."""
    place = _property(report.recipe.path)
    for change in report.changes:
        if change.open:
            title = _property(f"optcli gate: {change.kind} changed")
            yield f"::warning file={place},title={title}::{_message(told(change))}"
    for name, variant in report.variants.items():
        for each in variant.comparisons:
            level = _LEVELS.get(each.outcome)
            if level and each.blocking:
                title = _property(f"optcli gate: {name} {each.name} {WORDS[each.outcome]}")
                yield f"::{level} file={place},title={title}::{_message(each.reason)}"


def gitlab_metrics(report: GateReport) -> str:
    """OpenMetrics text: GitLab shows in a merge request which of these changed."""
    lines = []
    for name, variant in report.variants.items():
        for each in variant.comparisons:
            if each.candidate is not None:
                labels = {"variant": name, "figure": each.name}
                if each.batch_size is not None:
                    labels["batch_size"] = str(each.batch_size)
                marks = ",".join(f'{key}="{_label(value)}"' for key, value in labels.items())
                lines.append(f"optcli_{each.metric}_{each.unit}{{{marks}}} {each.candidate:.10g}")
    return "\n".join([*lines, "# EOF"]) + "\n"


def benchmark_json(report: GateReport) -> str:
    """JSON for github-action-benchmark's `customSmallerIsBetter`: times, sizes and losses."""
    found = []
    for name, variant in report.variants.items():
        for each in variant.comparisons:
            if each.candidate is None or each.metric in ("slo", "outputs"):
                continue
            value = each.candidate
            label = f"{name} {each.name}"
            if each.batch_size is not None:
                label += f", batch {each.batch_size}"
            if each.metric == "accuracy":
                if each.change is None:
                    continue
                label, value = f"{label} loss", each.change.value
            found.append({"name": label, "unit": each.unit, "value": value, "extra": each.reason})
    return json.dumps(found, indent=2) + "\n"


def _figures(found: Comparison) -> str:
    lines = [f"baseline {found.baseline} {found.unit}, now {found.candidate} {found.unit}"]
    if found.change is not None:
        lines.append(f"change {found.change.value:+.6f} [{found.change.low}, {found.change.high}]")
    if found.limit is not None:
        lines.append(f"limit {found.limit}")
    if found.pairs:
        lines.append(f"{found.pairs} launch pairs")
    return "\n".join(lines)


def _text(value: str) -> str:
    return _CONTROL.sub("?", value)


def _message(value: str) -> str:
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _message(value).replace(":", "%3A").replace(",", "%2C")


def _label(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
