"""Which variants the gate judges: those that either side marks or would serve."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from optcli.errors import UsageError, did_you_mean
from optcli.recipe import Recipe
from optcli.results import Report, VariantReport
from optcli.results.gate import Change, Choice
from optcli.results.terms import Terms


def chosen(
    now: Recipe,
    only: Sequence[str],
    before: Terms | None,
    suggested_now: Callable[[], Sequence[str]],
    suggested_before: Callable[[], Sequence[str]],
) -> tuple[dict[str, tuple[Choice, ...]], list[Change]]:
    """The variants to judge with the reasons, in the recipe's order, and changes for those that left.

    Each side has those marked `gate: true`; without a mark those that its build recommends, which is
    asked only then. Variants named on the command line (`only`) stand for both. Raises `UsageError`
    where there is none of such a name.
    """
    for name in only:
        if name not in now.variants:
            hint = did_you_mean(name, list(now.variants))
            raise UsageError(f"the recipe has no variant {name!r}", place="--variant", hint=hint)
    reasons: dict[str, list[Choice]] = {name: ["named"] for name in only}
    missing: list[Change] = []
    if not only:
        marked = [name for name, variant in now.variants.items() if variant.gate]
        _add(reasons, marked, "marked")
        marked_before = [n for n, variant in before.variants.items() if variant.gate] if before else []
        _add(reasons, marked_before, "marked-before")
        unmarked = [] if marked_before else [*suggested_before()]
        _add(reasons, unmarked, "recommended-before")
        if not marked:
            _add(reasons, suggested_now(), "recommended")
        # A mark that went is a change of the terms themselves.
        missing = [
            Change(kind="variants", place=f"variants.{name}", before="recommended", after=None)
            for name in unmarked
            if name not in now.variants
        ]
        if marked and before is not None and not marked_before:
            missing += [
                Change(
                    kind="variants", place=f"variants.{name}.gate", before="recommended", after=False
                )
                for name in unmarked
                if name in now.variants and name not in marked
            ]
    ordered = {name: tuple(reasons[name]) for name in now.variants if name in reasons}
    return ordered, missing


def _add(reasons: dict[str, list[Choice]], names: Sequence[str], reason: Choice) -> None:
    for name in names:
        reasons.setdefault(name, []).append(reason)


def suggested_by(report: Report) -> tuple[str, ...]:
    """What a build recommends at any batch size; its baseline where at one it recommends nothing.

    Where the machine was not fit to tell, or a speed-up is not known, every variant that may be served
    is among them.
    """
    sizes = report.recommendations.values()
    recommended = [report.recommended, *(each.variant for each in sizes)]
    names = [report.baseline if name is None else name for name in recommended]
    if report.recommended is None or any(each.withheld for each in sizes):
        names += [
            name
            for name, variant in report.variants.items()
            if name != report.baseline and variant.artifact is not None and not _is_told(variant)
        ]
    return tuple(dict.fromkeys(names))


def _is_told(variant: VariantReport) -> bool:
    """Whether its latency decided that it is not served: rejected, or surely not faster."""
    if any(each.blocking and each.outcome == "reject" for each in variant.verdicts):
        return True
    rows = variant.on_host
    return bool(rows) and all(
        row.fit and row.speedup is not None and row.speedup.low is not None and row.speedup.low <= 1
        for row in rows
        if row.batch_size == min(each.batch_size for each in rows)
    )
