"""The one answer of the gate: an outcome, a sentence and an exit code."""

from __future__ import annotations

from collections.abc import Mapping

from optcli.errors import ExitCode
from optcli.results import Outcome
from optcli.results.gate import Comparison, GatedVariant, worst

_CODES = {
    "accept": ExitCode.DONE,
    "reject": ExitCode.REJECTED,
    "inconclusive": ExitCode.INCONCLUSIVE,
}


def answer(
    variants: Mapping[str, GatedVariant], baseline: str, on_inconclusive: str | None
) -> tuple[Outcome, str, ExitCode]:
    """What to do with the merge. `on_inconclusive` makes a doubt a `pass` or a `fail`.

    Where every variant is new nothing was judged, so that a renamed one cannot slip through.
    """
    outcome = worst(variant.outcome for variant in variants.values())
    if outcome == "accept" and not _judged(variants):
        outcome = "inconclusive"
    code = _CODES[outcome]
    if outcome == "inconclusive" and on_inconclusive is not None:
        code = ExitCode.DONE if on_inconclusive == "pass" else ExitCode.REJECTED
    return outcome, _sentence(variants, baseline, outcome, code), code


def _sentence(
    variants: Mapping[str, GatedVariant], baseline: str, outcome: Outcome, code: ExitCode
) -> str:
    found = [
        (name, each)
        for name, variant in variants.items()
        for each in variant.comparisons
        if each.blocking and each.outcome == outcome
    ]
    if outcome == "reject":
        return f"Do not merge: {_listed(found)}{_because(variants)}."
    if outcome == "inconclusive":
        what = _listed(found) or f"{', '.join(variants)} is not in {baseline}, nothing was compared"
        taken = {ExitCode.DONE: " Taken as a pass.", ExitCode.REJECTED: " Taken as a failure."}
        return f"Cannot tell: {what}.{taken.get(code, '')}"
    new = [name for name, variant in variants.items() if not _judged({name: variant})]
    besides = f"; {', '.join(new)} is new and was not compared" if new else ""
    better = [(name, each) for name, each in found if each.improved]
    if better:
        return (
            f"Merge: {_listed(better)}; nothing became worse than {baseline} beyond its limit{besides}."
        )
    return f"Merge: nothing became worse than {baseline} beyond its limit{besides}."


def _judged(variants: Mapping[str, GatedVariant]) -> bool:
    return any(each.blocking for variant in variants.values() for each in variant.comparisons)


def _listed(found: list[tuple[str, Comparison]]) -> str:
    parts = [f"{name} {each.name}: {each.reason}" for name, each in found[:3]]
    more = f", and {len(found) - 3} more" if len(found) > 3 else ""
    return "; ".join(parts) + more


def _because(variants: Mapping[str, GatedVariant]) -> str:
    """The strongest cause, where one is known."""
    for variant in variants.values():
        if variant.outcome == "reject" and variant.causes:
            return f". What changed: {variant.causes[0]}"
    return ""
