"""The gate's answer in the forms that CI systems read.

JUnit XML; workflow commands of GitHub Actions; OpenMetrics text for GitLab's metrics reports; and the
`customSmallerIsBetter` JSON of github-action-benchmark.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Literal

from optcli.report import junit as junit_xml
from optcli.report.gate.changes import told
from optcli.report.gate.rows import WORDS, causes
from optcli.report.junit import Case
from optcli.results.gate import Comparison, GateReport

_LEVELS = {"reject": "error", "inconclusive": "warning"}


def junit(report: GateReport) -> str:
    """JUnit XML: one test case per figure; inconclusive ones are skipped, failed ones carry figures."""
    name = report.recipe.name
    return junit_xml.junit(f"optcli gate {name}", report.started, list(_cases(report)))


def _cases(report: GateReport) -> Iterator[Case]:
    for name, variant in report.variants.items():
        for each in variant.comparisons:
            size = f" at batch size {each.batch_size}" if each.batch_size else ""
            place, figures = f"{report.recipe.name}.{name}", _figures(each)
            failed = "\n".join([figures, *causes(variant)])
            yield junit_xml.judged(place, f"{each.name}{size}", each, figures, failed)
    for change in report.changes:
        result: Literal["passed", "skipped"] = "skipped" if change.open else "passed"
        name = f"{change.kind} {change.place}"
        yield Case(f"{report.recipe.name}.terms", name, result, told(change))


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
    entries = []
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
            entries.append({"name": label, "unit": each.unit, "value": value, "extra": each.reason})
    return json.dumps(entries, indent=2) + "\n"


def _figures(compared: Comparison) -> str:
    lines = [f"baseline {compared.baseline} {compared.unit}, now {compared.candidate} {compared.unit}"]
    if compared.change is not None:
        lines.append(
            f"change {compared.change.value:+.6f} [{compared.change.low}, {compared.change.high}]"
        )
    if compared.limit is not None:
        lines.append(f"limit {compared.limit}")
    if compared.pairs:
        lines.append(f"{compared.pairs} launch pairs")
    return "\n".join(lines)


def _message(value: str) -> str:
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _message(value).replace(":", "%3A").replace(",", "%2C")


def _label(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
