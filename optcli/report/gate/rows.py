"""The gate's rows as text, before any layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from optcli.report import wording
from optcli.results.gate import Comparison, GatedVariant, GateReport

# What an outcome is called in front of a reviewer.
WORDS = {"accept": "pass", "reject": "FAIL", "inconclusive": "cannot tell"}


@dataclass(frozen=True)
class Row:
    """One comparison; every field is ready to be shown."""

    variant: str
    figure: str
    baseline: str
    candidate: str
    change: str
    limit: str
    verdict: str
    outcome: str
    reason: str


def rows(report: GateReport) -> list[Row]:
    """One row per comparison, in the recipe's order."""
    return [
        _row(name, each) for name, variant in report.variants.items() for each in variant.comparisons
    ]


def doubts(report: GateReport) -> Iterator[str]:
    """What to distrust, by variant."""
    for name, variant in report.variants.items():
        yield from (f"{name}: {flag.text}" for flag in variant.flags)


def causes(variant: GatedVariant) -> Iterator[str]:
    """What differs between the two artifacts, and which operators grew."""
    yield from variant.causes
    for each in variant.operators:
        yield (
            f"{each.operator}: {wording.number(each.baseline_ms)} ms, now "
            f"{wording.number(each.candidate_ms)} ms a call"
        )


def _row(variant: str, found: Comparison) -> Row:
    figure = found.name if found.batch_size is None else f"{found.name}, batch {found.batch_size}"
    verdict = WORDS[found.outcome]
    if found.improved:
        verdict = "improved"
    elif not found.blocking:
        verdict = "reported" if found.outcome == "accept" else f"{verdict.lower()} (advice)"
    return Row(
        variant=variant,
        figure=figure,
        baseline=_figure(found.baseline, found.unit),
        candidate=_figure(found.candidate, found.unit),
        change=_change(found),
        limit=_limit(found),
        verdict=verdict,
        outcome=found.outcome if found.blocking or found.outcome == "accept" else "inconclusive",
        reason=found.reason,
    )


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    if unit == "bytes":
        return wording.megabytes(round(value))
    return wording.percent(value) if unit == "fraction" else f"{wording.number(value)} ms"


def _change(found: Comparison) -> str:
    if found.change is None:
        return ""
    sign = -1 if found.metric == "accuracy" else 1  # a loss is shown as a fall
    # Adding 0.0 turns a negative zero into none.
    growth = round(100 * sign * found.change.value, 2 if found.metric == "accuracy" else 1) + 0.0
    value = f"{growth:+.2f} points" if found.metric == "accuracy" else f"{growth:+.1f} %"
    low, high = found.change.low, found.change.high
    if low is None or high is None:
        return value
    low, high = sorted((100 * sign * low, 100 * sign * high))
    return f"{value} [{low:+.1f}, {high:+.1f}]"


def _limit(found: Comparison) -> str:
    if found.limit is None:
        return ""
    if found.metric == "slo":
        return f"{wording.number(found.limit)} ms"
    if found.metric == "accuracy":
        return f"-{100 * found.limit:g} points"
    besides = f" and {wording.megabytes(int(found.slack))}" if found.slack else ""
    return f"+{100 * found.limit:g} %{besides}"
