"""How a build ends: its exit code, and why in one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from optcli.errors import ExitCode, OptcliError
from optcli.pipeline.plan import BuildPlan
from optcli.report.recommendation import Advice
from optcli.results import Outcome, VariantReport

_WORDS = {"reject": "is rejected", "inconclusive": "is undecided"}


@dataclass(frozen=True)
class ExitStatus:
    """An exit code and the reason for it."""

    code: ExitCode
    reason: str


def exit_status(
    plan: BuildPlan,
    variants: Mapping[str, VariantReport],
    errors: Mapping[str, OptcliError],
    advice: Advice,
) -> ExitStatus:
    """The one code of a build; `errors` holds what failed, by variant or step.

    Blocking verdicts count of the baseline, of variants that the recipe marks `required` or `gate`,
    and, where no other variant is accepted, of all. A variant that is rejected beside one that is
    accepted is a finding, no failure. A recommendation that is withheld fails nothing.
    """
    endings = [
        *_failed(variants, errors),
        *_missing(plan, variants),
        *_marked(plan, variants),
        *_none_accepted(plan, variants),
    ]
    code = ExitCode.first_of([each.code for each in endings])
    if code != ExitCode.DONE:
        return next(each for each in endings if each.code == code)
    return ExitStatus(code, _done(plan, variants, advice))


def _failed(
    variants: Mapping[str, VariantReport], errors: Mapping[str, OptcliError]
) -> Iterator[ExitStatus]:
    names = [name for name, variant in variants.items() if variant.status == "failed"]
    for code in dict.fromkeys(error.exit_code for error in errors.values()):
        yield ExitStatus(code, f"{', '.join(names) or 'a step'} failed")


def _missing(plan: BuildPlan, variants: Mapping[str, VariantReport]) -> Iterator[ExitStatus]:
    for variant in plan.variants:
        if variant.missing and variant.required:
            reason = variants[variant.name].reason or "something is missing"
            yield ExitStatus(ExitCode.MISSING, f"{variant.name} is required and was skipped: {reason}")


def _marked(plan: BuildPlan, variants: Mapping[str, VariantReport]) -> Iterator[ExitStatus]:
    """Blocking verdicts on what the recipe asks for: the baseline, and what it marks.

    What it marks and what cannot run here has none, and is undecided.
    """
    unmeasured = {variant.name for variant in plan.variants if variant.unmeasurable}
    for name, variant in variants.items():
        marks = plan.recipe.variants[name]
        why = [word for word, is_set in (("required", marks.required), ("gate", marks.gate)) if is_set]
        if name == plan.baseline or why:
            outcome, against = blocked(variant)
            mark = f", marked {' and '.join(why)}," if why else ", the baseline,"
            if name in unmeasured and why and _asks(plan):
                reason = f"{name}{mark} is undecided: it was built and not run ({variant.reason})"
                yield ExitStatus(ExitCode.INCONCLUSIVE, reason)
            elif outcome != "accept":
                yield ExitStatus(
                    ExitCode.of(outcome), f"{name}{mark} {_WORDS[outcome]} ({', '.join(against)})"
                )


def _asks(plan: BuildPlan) -> bool:
    """Whether the recipe judges anything that only running a variant can measure."""
    recipe = plan.recipe
    return (
        "evaluation" in recipe.data or recipe.slo is not None or recipe.latency.min_speedup is not None
    )


def _none_accepted(plan: BuildPlan, variants: Mapping[str, VariantReport]) -> Iterator[ExitStatus]:
    """Where verdicts block every variant that was run, the first that applies of their codes."""
    run = {name: blocked(each) for name, each in _run(plan, variants).items()}
    if not run or any(outcome == "accept" for outcome, _ in run.values()):
        return
    outcome: Outcome = "reject" if any(o == "reject" for o, _ in run.values()) else "inconclusive"
    blocked_variants = [
        f"{name} {_WORDS[o]} ({', '.join(against)})" for name, (o, against) in run.items()
    ]
    yield ExitStatus(ExitCode.of(outcome), f"no variant is accepted: {'; '.join(blocked_variants)}")


def _run(plan: BuildPlan, variants: Mapping[str, VariantReport]) -> dict[str, VariantReport]:
    """The variants beside the baseline that were built and run."""
    return {
        name: variant
        for name, variant in variants.items()
        if name != plan.baseline
        and variant.status in ("built", "cached")
        and (variant.latency or variant.verdicts)
    }


def blocked(variant: VariantReport) -> tuple[Outcome, list[str]]:
    """The worst outcome of a variant's blocking verdicts, and the names of the verdicts with it."""
    blocking = [each for each in variant.verdicts if each.blocking]
    outcomes: Sequence[Outcome] = ("reject", "inconclusive")
    for outcome in outcomes:
        names = [each.name for each in blocking if each.outcome == outcome]
        if names:
            return outcome, names
    return "accept", []


def _done(plan: BuildPlan, variants: Mapping[str, VariantReport], advice: Advice) -> str:
    first = next(iter(advice.by_batch.values()), None)
    if plan.recipe.latency.is_off:
        reason = "the build is done, latency was not measured"
    elif advice.recommended is not None:
        reason = f"{advice.recommended} is accepted and recommended"
    elif first is not None and first.withheld:
        reason = "the build is done; the machine was too unsteady for a recommendation"
    else:
        reason = "the build is done; no variant is recommended"
    run = {name: blocked(each) for name, each in _run(plan, variants).items()}
    for outcome, word in (("reject", "rejected"), ("inconclusive", "undecided")):
        names = [name for name, (worst, _) in run.items() if worst == outcome]
        reason += f"; {word}: {', '.join(names)}" if names else ""
    return reason
