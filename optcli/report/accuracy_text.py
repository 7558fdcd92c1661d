"""What each artifact costs in accuracy, as plain text."""

from __future__ import annotations

from collections.abc import Iterator

from optcli.report import class_figures, layers_text, wording
from optcli.report.terminal import aligned
from optcli.results import Accuracy, Report, VariantReport
from optcli.results.outcomes import ACCURACY_VERDICTS


def accuracy_text(report: Report, *, per_class: bool = False) -> str:
    """One paragraph a variant: metric, change with interval, further figures, both policies, advice.

    `per_class` adds the metric of every class, where it has one.
    """
    blocks = [
        "\n".join(_lines(name, variant, report.baseline, per_class))
        for name, variant in report.variants.items()
        if variant.accuracy is not None
    ]
    missing = [
        f"{name}: {variant.status}, no accuracy: {variant.reason or 'see the report'}"
        for name, variant in report.variants.items()
        if variant.accuracy is None
    ]
    return "\n\n".join([*blocks, *missing]) + "\n"


def _lines(name: str, variant: VariantReport, baseline: str, per_class: bool) -> Iterator[str]:
    accuracy = variant.accuracy
    assert accuracy is not None
    runner = variant.runner or {}
    what = (runner.get("name"), runner.get("precision"), accuracy.isa)
    yield f"{name}  ({', '.join(str(each) for each in what if each)})"
    if accuracy.metric is not None:
        different = accuracy.samples if accuracy.distinct is None else accuracy.distinct
        repeated = f", {different} of them different" if different < accuracy.samples else ""
        value = wording.percent(accuracy.value)
        yield f"  {accuracy.metric} {value} on {accuracy.samples} samples{repeated}"
    if name != baseline:
        yield from _against(accuracy, baseline)
    else:
        for figure, values in accuracy.figures.items():
            yield f"  {figure} {wording.percent(values.baseline)}"
    for verdict in variant.verdicts:
        judging = verdict.name in ACCURACY_VERDICTS
        sound = verdict.outcome == "accept" and verdict.name != "decoding"
        if not judging or (name == baseline and sound):
            continue
        named = verdict.name in ("accuracy", "outputs")
        yield f"  {verdict.outcome}: {'' if named else f'{verdict.name}: '}{verdict.reason}"
    if per_class:
        classes = class_figures.rows(accuracy)
        if classes:
            yield from (f"  {line}" for line in aligned([class_figures.HEADS, *classes]))
        else:
            yield f"  {accuracy.metric or 'outputs'}: no metric by class"
    if variant.layers is not None:
        yield from (f"  {line}" for line in layers_text.lines(variant.layers))


def _against(accuracy: Accuracy, baseline: str) -> Iterator[str]:
    """The change, figure by figure."""
    if accuracy.drop is not None:
        sides = ""
        if accuracy.regressed is not None:
            sides = f": {accuracy.regressed} lost, {accuracy.improved} gained"
        yield f"  change {_change(accuracy)}{sides}"
    for figure, values in accuracy.figures.items():
        points = wording.points(values.value - values.baseline)
        yield f"  {figure} {wording.percent(values.value)} ({points})"
    # One sample of a class says nothing of the class.
    several = [each for each in accuracy.classes if each.samples > 1]
    if several:
        changed = [
            f"{each.label} ({each.regressed} lost, {each.improved} gained of {each.samples})"
            for each in several
        ]
        yield f"  classes that changed most: {', '.join(changed)}"
    moved = accuracy.scores
    if moved is not None and moved.equal is not None:
        yield (
            f"  scores: {moved.count} {moved.of} with {moved.threshold:g} or more, the baseline"
            f" {moved.baseline}; as many at {moved.equal:.3g}"
        )
    if accuracy.output_error is not None:
        error = accuracy.output_error
        largest = "" if error.max_abs is None else f", largest difference {error.max_abs:.3g}"
        same = ""
        if accuracy.agreement is not None:
            same = f", the same class for {wording.percent(accuracy.agreement)}"
        yield f"  outputs against {baseline}: {wording.difference(error)}{largest}{same}"
        faded = sum(part.faded_count for part in error.parts)
        if faded:
            yield f"  {faded} channels or classes that hardly vary in {baseline} are constant here"


def _change(accuracy: Accuracy) -> str:
    drop = accuracy.drop
    assert drop is not None
    if drop.low is None or drop.high is None:
        return f"{wording.change(accuracy)} points"
    ends = (drop.low, drop.high) if accuracy.better == "lower" else (-drop.high, -drop.low)
    return f"{wording.change(accuracy)} points [{wording.points(ends[0])}, {wording.points(ends[1])}]"
