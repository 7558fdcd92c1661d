"""The rows and columns of the gate's table, each column defined once for every view."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from optcli.report import wording
from optcli.results.document import Cell, Column
from optcli.results.gate import Comparison, GatedVariant, GateReport

# What an outcome is called in front of a reviewer.
WORDS = {"accept": "pass", "reject": "FAIL", "inconclusive": "cannot tell"}


@dataclass(frozen=True)
class Row:
    """One comparison of a variant."""

    variant: str
    comparison: Comparison


def rows(report: GateReport) -> list[Row]:
    """One row per comparison, in the recipe's order."""
    return [
        Row(name, each) for name, variant in report.variants.items() for each in variant.comparisons
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


def _name(row: Row) -> Cell:
    compared = row.comparison
    size = "" if compared.batch_size is None else f", batch {compared.batch_size}"
    return Cell(f"{compared.name}{size}")


def _verdict(row: Row) -> Cell:
    compared = row.comparison
    verdict = WORDS[compared.outcome]
    if compared.improved:
        verdict = "improved"
    elif not compared.blocking:
        verdict = "reported" if compared.outcome == "accept" else f"{verdict.lower()} (advice)"
    decides = compared.blocking or compared.outcome == "accept"
    return Cell(verdict, tone=compared.outcome if decides else "inconclusive")


def _side(value: float | None, unit: str) -> Cell:
    return Cell("" if value is None else wording.figure(value, unit))


def _change(compared: Comparison) -> str:
    if compared.change is None:
        return ""
    sign = -1 if compared.metric == "accuracy" else 1  # a loss is shown as a fall
    # Adding 0.0 turns a negative zero into none.
    growth = round(100 * sign * compared.change.value, 2 if compared.metric == "accuracy" else 1) + 0.0
    value = f"{growth:+.2f} points" if compared.metric == "accuracy" else f"{growth:+.1f} %"
    low, high = compared.change.low, compared.change.high
    if low is None or high is None:
        return value
    low, high = sorted((100 * sign * low, 100 * sign * high))
    return f"{value} [{low:+.1f}, {high:+.1f}]"


def _limit(compared: Comparison) -> str:
    if compared.limit is None:
        return ""
    if compared.metric == "slo":
        return wording.figure(compared.limit, compared.unit)
    if compared.metric == "accuracy":
        return f"-{100 * compared.limit:g} points"
    besides = f" and {wording.megabytes(int(compared.slack))}" if compared.slack else ""
    return f"+{100 * compared.limit:g} %{besides}"


COLUMNS: tuple[Column[Row], ...] = (
    Column("variant", lambda row: Cell(row.variant), align="left"),
    Column("figure", _name, align="left"),
    Column("baseline", lambda row: _side(row.comparison.baseline, row.comparison.unit)),
    Column("now", lambda row: _side(row.comparison.candidate, row.comparison.unit)),
    Column("change", lambda row: Cell(_change(row.comparison))),
    Column("limit", lambda row: Cell(_limit(row.comparison))),
    Column("verdict", _verdict, align="left"),
)
