"""What each artifact costs in accuracy, as plain text."""

from __future__ import annotations

from collections.abc import Iterator

from optcli.report import layers_text, wording
from optcli.results import Accuracy, Report, VariantReport
from optcli.results.outcomes import ACCURACY_VERDICTS


def accuracy_text(report: Report) -> str:
    """One paragraph a variant: metric, change with interval, further figures, both policies, advice."""
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
    isa = f", {accuracy.isa}" if accuracy.isa else ""
    yield f"{name}  ({runner.get('name', '')}, {runner.get('precision', '')}{isa})"
    if accuracy.metric is not None:
        yield f"  {accuracy.metric} {wording.percent(accuracy.value)} on {accuracy.samples} samples"
    if name != baseline:
        yield from _against(accuracy, baseline)
    else:
        for figure, found in accuracy.figures.items():
            yield f"  {figure} {wording.percent(found.baseline)}"
    for verdict in variant.verdicts:
        judging = verdict.name in ACCURACY_VERDICTS
        if not judging or (name == baseline and verdict.outcome == "accept"):
            continue
        named = verdict.name in ("accuracy", "outputs")
        yield f"  {verdict.outcome}: {'' if named else f'{verdict.name}: '}{verdict.reason}"
    if variant.layers is not None:
        yield from (f"  {line}" for line in layers_text.lines(variant.layers))


def _against(accuracy: Accuracy, baseline: str) -> Iterator[str]:
    """The change, figure by figure."""
    if accuracy.drop is not None:
        sides = ""
        if accuracy.regressed is not None:
            sides = f": {accuracy.regressed} lost, {accuracy.improved} gained"
        yield f"  change {_change(accuracy)}{sides}"
    for figure, found in accuracy.figures.items():
        points = _points(found.value - found.baseline)
        yield f"  {figure} {wording.percent(found.value)} ({points})"
    # One sample of a class says nothing of the class.
    classes = [each for each in accuracy.classes if each.samples > 1]
    if classes:
        changed = [
            f"{each.label} ({each.regressed} lost, {each.improved} gained of {each.samples})"
            for each in classes
        ]
        yield f"  classes that changed most: {', '.join(changed)}"
    if accuracy.output_error is not None:
        error = accuracy.output_error
        largest = "" if error.max_abs is None else f", largest difference {error.max_abs:.3g}"
        same = ""
        if accuracy.agreement is not None:
            same = f", largest score the same for {wording.percent(accuracy.agreement)}"
        yield f"  outputs against {baseline}: {wording.difference(error)}{largest}{same}"


def _change(accuracy: Accuracy) -> str:
    drop = accuracy.drop
    assert drop is not None
    if drop.low is None or drop.high is None:
        return f"{wording.change(accuracy)} points"
    ends = (drop.low, drop.high) if accuracy.better == "lower" else (-drop.high, -drop.low)
    return f"{wording.change(accuracy)} points [{_points(ends[0])}, {_points(ends[1])}]"


def _points(fraction: float) -> str:
    return f"{round(100 * fraction, 2) + 0.0:+.2f}"
