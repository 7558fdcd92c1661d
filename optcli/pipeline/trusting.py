"""Which workers of a build are confined, and what was made under `--trust`: docs/decisions/trust.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from optcli import sources
from optcli.artifact import CODE, UNPROVEN, Artifact, Format
from optcli.errors import TrustError, UsageError
from optcli.pipeline.plan import Plan, PlannedVariant, Step
from optcli.pipeline.terms import judging_code
from optcli.recipe import Recipe
from optcli.store import Entry
from optcli.workers import confinement

_PYTHON = "python"


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
    artifact: Artifact, variant: PlannedVariant, plan: Plan, *, trust: bool, fetched: bool = False
) -> Artifact:
    """The artifact of a variant as the workers that measure and judge it open it.

    `fetched` says that it, or what it was made from, came from a remote store.

    They are not confined where the runner starts a compiler or uses a GPU, whose driver is not known to
    do with reading, or where the recipe's own Python runs in them.
    """
    runner = variant.runner
    free = runner.starts_programs() or runner.requires().gpu or brings_python(plan.recipe)
    from_file = plan.source.foreign or fetched
    return opened_as(artifact, from_file=from_file and not free, trust=trust)


def brings_python(recipe: Recipe) -> bool:
    """Whether samples, metric or what follows the model are Python of the recipe's own."""
    samples = any(role.kind == _PYTHON for role in recipe.data.values())
    return samples or bool(judging_code(recipe))


def is_confined(step: Step, plan: Plan, *, fetched: bool = False) -> bool:
    """Whether a step's worker can only read and write its own folder: it opens somebody's file.

    `fetched` says that what it reads came from a remote store. Not where it makes compiled code, which
    takes a compiler, or uses a GPU. Not where it runs Python of the user's own either: a pass, or
    samples.
    """
    # A network in Python that was fetched is one that the person trusts, and may need its own room.
    fetched = fetched and step.parent is not None and step.parent.format not in CODE
    if not (plan.source.foreign or fetched) or step.traits is None:
        return plan.source.foreign
    users = step.traits.reference is not None
    users = users or any(plan.recipe.data[role].kind == _PYTHON for role in step.traits.uses)
    return step.format not in CODE and not step.needs.gpu and not users


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


def require_wall(plan: Plan, *, trust: bool) -> None:
    """Raise `TrustError` for TorchScript where workers cannot be confined: a scan alone is no proof."""
    if plan.source.format != Format.TORCHSCRIPT or trust or confinement.available().whole:
        return
    raise TrustError(
        "this is TorchScript, a program of its own, and this system cannot confine what runs it "
        f"({confinement.available()})",
        place=plan.recipe.model.source,
        hint="add --trust where you know who made it",
    )
