"""What each artifact costs in accuracy, as plain text."""

from __future__ import annotations

from collections.abc import Iterator

from optcli.report import wording
from optcli.results import Accuracy, Report, VariantReport


def accuracy_text(report: Report) -> str:
    """One paragraph a variant: the metric and its change with interval, lost and gained, verdicts."""
    blocks = [
        "\n".join(_lines(name, variant, report.baseline))
        for name, variant in report.variants.items()
        if variant.accuracy is not None
    ]
    missing = [
        f"{name}: {variant.status}, no accuracy: {variant.reason or 'see the report'}"
        for name, variant in report.variants.items()
        if variant.accuracy is None
    ]
    return "\n\n".join([*blocks, *missing]) + "\n"


def _lines(name: str, variant: VariantReport, baseline: str) -> Iterator[str]:
    accuracy = variant.accuracy
    assert accuracy is not None
    runner = variant.runner or {}
    yield f"{name}  ({runner.get('name', '')}, {runner.get('precision', '')})"
    if accuracy.metric is not None:
        yield f"  {accuracy.metric} {wording.percent(accuracy.value)} on {accuracy.samples} samples"
    if name != baseline:
        if accuracy.drop is not None:
            yield f"  change {_change(accuracy)}: {accuracy.regressed} lost, {accuracy.improved} gained"
        if accuracy.output_error is not None:
            error = accuracy.output_error
            largest = "" if error.max_abs is None else f", largest difference {error.max_abs:.3g}"
            yield f"  outputs against {baseline}: {wording.difference(error)}{largest}"
    for verdict in variant.verdicts:
        if verdict.name in ("accuracy", "outputs") and name != baseline:
            yield f"  {verdict.outcome}: {verdict.reason}"


def _change(accuracy: Accuracy) -> str:
    drop = accuracy.drop
    assert drop is not None
    if drop.low is None or drop.high is None:
        return f"{wording.change(accuracy)} points"
    return f"{wording.change(accuracy)} points [{-100 * drop.high:+.2f}, {-100 * drop.low:+.2f}]"
