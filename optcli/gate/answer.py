"""The one answer of the gate: an outcome, a sentence and an exit code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from optcli.errors import ExitCode
from optcli.report.gate.changes import kinds_of, together
from optcli.results import Outcome
from optcli.results.gate import Change, Comparison, GatedVariant, worst

# Figures that noise can leave undecided: only these may count as a pass where they are inconclusive.
_TIMED = ("p50", "p95", "slo")
_MOST_TOLD = 3


def answer(
    variants: Mapping[str, GatedVariant],
    changes: Sequence[Change],
    baseline: str,
    on_inconclusive: str | None,
) -> tuple[Outcome, str, ExitCode]:
    """What to do with the merge. `on_inconclusive` makes a doubt a `pass` or a `fail`.

    `pass` covers noise alone: latency that was measured and not decided, and does not look worse than
    its limit. What was not compared, and terms that changed without being declared, stay inconclusive.
    So does a gate whose every variant is new.
    """
    outcome = worst(variant.outcome for variant in variants.values())
    undeclared = [each for each in changes if each.open]
    nothing = not _judged(variants)
    if outcome == "accept" and (nothing or undeclared):
        outcome = "inconclusive"
    code = ExitCode.of(outcome)
    if outcome == "inconclusive" and on_inconclusive == "fail":
        code = ExitCode.REJECTED
    if outcome == "inconclusive" and on_inconclusive == "pass":
        doubts = _with_outcome(variants, "inconclusive")
        noise = not undeclared and not nothing and all(_is_noise(each) for _, each in doubts)
        code = ExitCode.DONE if noise else code
    return outcome, _sentence(variants, undeclared, baseline, outcome, code), code


def _is_noise(comparison: Comparison) -> bool:
    return comparison.compared and comparison.metric in _TIMED and not comparison.seems_worse


def _with_outcome(
    variants: Mapping[str, GatedVariant], outcome: Outcome
) -> list[tuple[str, Comparison]]:
    return [
        (name, each)
        for name, variant in variants.items()
        for each in variant.comparisons
        if each.blocking and each.outcome == outcome
    ]


def _sentence(
    variants: Mapping[str, GatedVariant],
    undeclared: Sequence[Change],
    baseline: str,
    outcome: Outcome,
    code: ExitCode,
) -> str:
    decisive = _with_outcome(variants, outcome)
    if outcome == "reject":
        # The strongest cause, where one is known.
        known = (v.causes[0] for v in variants.values() if v.outcome == "reject" and v.causes)
        because = next((f". What changed: {cause}" for cause in known), "")
        return f"Do not merge: {_listed(decisive)}{because}."
    if outcome == "inconclusive":
        return _cannot_tell(variants, undeclared, baseline, code, decisive)
    new = [name for name, variant in variants.items() if not _judged({name: variant})]
    besides = f"; {', '.join(new)} is new and was not compared" if new else ""
    shown = (each for variant in variants.values() for each in variant.comparisons)
    if not any(each.metric == "accuracy" and each.blocking for each in shown):
        besides += "; accuracy was not judged"
    nothing = f"nothing became worse than {baseline} beyond its limit{besides}"
    better = [(name, each) for name, each in decisive if each.improved]
    return f"Merge: {_listed(better)}; {nothing}." if better else f"Merge: {nothing}."


def _cannot_tell(
    variants: Mapping[str, GatedVariant],
    undeclared: Sequence[Change],
    baseline: str,
    code: ExitCode,
    decisive: list[tuple[str, Comparison]],
) -> str:
    parts = []
    if undeclared:
        clauses = together(undeclared)
        listed = "; ".join(clauses[:_MOST_TOLD])
        more = len(clauses) - _MOST_TOLD
        listed += f", and {more} more" if more > 0 else ""
        declare = f"--accept {','.join(kinds_of(undeclared))}"
        parts.append(
            f"what the candidate is judged by has changed: {listed} (whoever runs the gate may allow"
            f" that: {declare})"
        )
    if decisive:
        parts.append(_listed(decisive))
    if not parts:
        parts.append(f"{', '.join(variants)} is not in {baseline}, nothing was compared")
    endings = {ExitCode.DONE: " Taken as a pass.", ExitCode.REJECTED: " Taken as a failure."}
    return f"Cannot tell: {'; '.join(parts)}.{endings.get(code, '')}"


def _judged(variants: Mapping[str, GatedVariant]) -> bool:
    """Whether anything was compared with what was there before."""
    old = [variant for variant in variants.values() if not variant.is_new]
    return any(each.blocking for variant in old for each in variant.comparisons)


def _listed(named: list[tuple[str, Comparison]]) -> str:
    parts = [f"{name} {each.name}: {each.reason}" for name, each in named[:_MOST_TOLD]]
    more = f", and {len(named) - _MOST_TOLD} more" if len(named) > _MOST_TOLD else ""
    return "; ".join(parts) + more
