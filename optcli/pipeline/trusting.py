"""Which workers of a build are confined, and what was made under `--trust`: docs/decisions/trust.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from optcli.artifact import CODE, SCANNED, UNPROVEN, Artifact
from optcli.errors import TrustError, UsageError
from optcli.models import sources
from optcli.pipeline.plan import BuildPlan, PlannedVariant, Step
from optcli.pipeline.terms import judging_code
from optcli.recipe import Recipe
from optcli.runners import Runner
from optcli.store import Entry
from optcli.workers.confinement import require_confinement

USERS = "it runs Python of the recipe's own"
_GPU = "it uses a GPU, whose driver was not tried in confined workers"


def is_from_file(made_by: Sequence[Mapping[str, Any]]) -> bool:
    """Whether these steps began with a model file that may come from elsewhere."""
    try:
        return bool(made_by) and sources.find(str(made_by[0].get("kind"))).foreign
    except UsageError:  # of an optcli that knew other sources
        return False


def is_fetched(entries: Iterable[Entry | None]) -> bool:
    """Whether one of these steps came from a remote store, and with it what is made of them."""
    return any(entry is not None and entry.origin for entry in entries)


def opened_as(artifact: Artifact, *, from_file: bool, trust: bool) -> Artifact:
    """The artifact as this run opens it: in a confined worker where it was made from somebody's file.

    `from_file` is also true where it was made from a result that a remote store gave. Artifacts that
    are code are not confined: they were compiled here, and may have to compile once more.
    """
    return replace(artifact, foreign=from_file and artifact.format not in CODE, trusted=trust)


def measured_as(
    artifact: Artifact, variant: PlannedVariant, plan: BuildPlan, *, trust: bool, fetched: bool = False
) -> Artifact:
    """The artifact of a variant as the workers that measure and judge it open it.

    `fetched` says that it, or what it was made from, came from a remote store.

    They are not confined where `why_free` says why.
    """
    from_file = plan.source.foreign or fetched
    free = why_free(variant.runner, plan.recipe)
    return opened_as(artifact, from_file=from_file and not free, trust=trust)


def why_free(runner: Runner, recipe: Recipe) -> str:
    """Why workers that measure and judge with a runner cannot be confined; empty where they can."""
    return why_runner_is_free(runner) or (USERS if brings_python(recipe) else "")


def why_runner_is_free(runner: Runner) -> str:
    """Why a worker that opens an artifact with a runner cannot be confined; empty where it can."""
    if runner.starts_programs():
        return "its runner starts a compiler"
    return _GPU if runner.requires().gpu else ""


def brings_python(recipe: Recipe) -> bool:
    """Whether samples, metric or what follows the model are Python of the recipe's own."""
    samples = any(role.runs_code for role in recipe.data.values())
    return samples or bool(judging_code(recipe))


def is_confined(step: Step, plan: BuildPlan, *, fetched: bool = False) -> bool:
    """Whether a step's worker can only read and write its own folder: it opens somebody's file.

    `fetched` says that what it reads came from a remote store. Not where `_why_step_is_free` says why.
    """
    # A network in Python that was fetched is one that the person trusts, and may need its own room.
    fetched = fetched and step.parent is not None and step.parent.format not in CODE
    return (plan.source.foreign or fetched) and not _why_step_is_free(step, plan)


def _why_step_is_free(step: Step, plan: BuildPlan) -> str:
    """Why a step's worker cannot be confined; empty where it can."""
    if step.traits is None:
        return ""
    users = step.traits.reference is not None
    if users or any(plan.recipe.data[role].runs_code for role in step.traits.uses):
        return USERS
    if step.needs.gpu:
        return _GPU
    return "it compiles, which starts a compiler" if step.format in CODE else ""


def why_opened_free(step: Step, plan: BuildPlan) -> tuple[str, str]:
    """Where a worker that is not confined opens the program that a step makes, and why; empty: nowhere.

    Also one that is made of it by later steps.
    """
    for variant in plan.variants:
        if step.key not in {each.key for each in (*variant.steps, *variant.possible)}:
            continue
        for each in variant.possible:
            if each.parent is None or each.parent.format not in SCANNED:
                continue
            descends = step.key in {one.key for one in each.parent.lineage()}
            if descends and (why := _why_step_is_free(each, plan)):
                return f"{variant.name} › {each.name}", why
        runs = not (variant.missing or variant.unmeasurable) and variant.last.format in SCANNED
        if runs and (why := why_free(variant.runner, plan.recipe)):
            return variant.name, why
    return "", ""


def doubts_of(entry: Entry) -> tuple[str, ...]:
    """What scans could not prove of a step's artifact and of the artifacts that it was made from."""
    return tuple(map(str, entry.record.get("facts", {}).get(UNPROVEN, ())))


def require_trust(doubts: Sequence[str], place: str, *, trust: bool) -> None:
    """Raise `TrustError` for an artifact that was made under `--trust`, unless `trust` is set now.

    Whoever made it knew who the model is from; who opens it now may not.
    """
    if doubts and not trust:
        raise TrustError(
            f"it was made with --trust, of a model that could run code: {doubts[0]}",
            place=place,
            hint="add --trust where you know who made the model",
        )


def require_wall(plan: BuildPlan, *, trust: bool) -> None:
    """Raise `TrustError` for a program from elsewhere that a worker would open without being confined.

    Nothing looks into the program: it could do whatever this person can.
    """
    if not plan.source.foreign or trust:
        return
    require_confinement(plan.source.format, plan.recipe.model.source, trust=trust)
    for variant in plan.variants:
        place, why = why_opened_free(variant.steps[0], plan)
        require_trust_without_wall(why, place, trust=trust)


def require_trust_without_wall(why: str, place: str, *, trust: bool) -> None:
    """Raise `TrustError` where `why` says that a program from elsewhere would run without a wall."""
    if why and not trust:
        raise TrustError(
            f"this opens a program from elsewhere in a worker that cannot be confined: {why}",
            place=place,
            hint="add --trust where you know who made the model: it could then do whatever you can",
        )
