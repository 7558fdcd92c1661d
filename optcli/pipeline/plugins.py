"""Passes from the user's own files and from other packages: checked in a worker, never run here."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path

from optcli.artifact import Format
from optcli.errors import (
    InputError,
    OptcliError,
    Problem,
    RecipeError,
    StepError,
    UsageError,
    first_line,
)
from optcli.files.digest import FileDigests
from optcli.passes import Pass, Traits
from optcli.recipe import PassUse, Recipe, check_formats, option_problems
from optcli.settings import user_code
from optcli.store import Store, key_of
from optcli.workers import Channel, messages, run

_MEMBERS = (
    "a pass has `accepts` (the formats that it reads), `produces(source)` (the format that it makes)"
    " and `run(source, job)` (its work)"
)


def traits(recipe: Recipe, store: Store, digests: FileDigests) -> dict[str, Traits]:
    """The traits of every pass that is not optcli's own, by its place in the recipe.

    Remembered in the store under the code's digest and the options, so that a cached build starts
    no worker for it. Raises `RecipeError` with everything that is wrong with options and formats.
    """
    uses = [use for v in recipe.variants.values() for use in v.passes if use.reference is not None]
    by_place: dict[str, Traits] = {}
    problems: list[Problem] = []
    for use in uses:
        try:
            by_place[use.place] = traits_of(use, recipe.folder, store, digests)
        except RecipeError as error:
            problems.extend(error.problems)
        except OptcliError as error:
            error.place = error.place or use.place
            raise
    if problems:
        raise RecipeError(problems)
    if uses:
        check_formats(recipe, by_place)
    return by_place


@dataclass(frozen=True)
class TraitsRequest:
    """A use of a pass whose `reference` is relative to `folder`; `code` is the digest of its source."""

    use: PassUse
    folder: Path
    code: str


def describe(request: TraitsRequest, channel: Channel) -> Traits:
    """In a worker: import the class, check the options, tell its traits."""
    from pydantic import ValidationError

    use, reference = request.use, str(request.use.reference)
    kind = loaded(reference, request.folder)
    if lacking := sorted({*kind.__abstractmethods__} | ({"accepts"} - {*dir(kind)})):
        raise UsageError(
            f"the pass {reference} lacks {', '.join(lacking)}",
            hint=_MEMBERS,
        )
    try:
        configured = kind.model_validate(use.options)
    except ValidationError as error:
        raise RecipeError(option_problems(use, kind, error)) from None
    _check_formats(configured, reference)
    return Traits.of(configured, use.name, request.code, reference)


def loaded(reference: str, folder: Path) -> type[Pass]:
    """The class of a pass of somebody else's code. Raises `UsageError` for what is none."""
    kind = user_code.load(reference, folder)
    if inspect.isclass(kind) and issubclass(kind, Pass):
        return kind
    raise UsageError(
        f"{reference} is not a pass: wanted a subclass of optcli.passes.Pass",
        hint=_MEMBERS,
    )


def _check_formats(configured: Pass, reference: str) -> None:
    """Raise `UsageError` where a pass does not say in formats what it reads and makes."""
    hint = f"wanted members of optcli.artifact.Format: {', '.join(one.name for one in Format)}"
    for source in configured.accepts:
        if not isinstance(source, Format):
            raise UsageError(f"{reference}: accepts holds {source!r}", hint=hint)
        try:
            result = configured.produces(source)
        except Exception as error:
            what = f"{type(error).__name__}: {first_line(error)}"
            raise UsageError(
                f"{reference}: produces({source}) raises {what}", hint="return a Format"
            ) from error
        if not isinstance(result, Format):
            raise UsageError(f"{reference}: produces({source}) gives {result!r}", hint=hint)


def traits_of(use: PassUse, folder: Path, store: Store, digests: FileDigests) -> Traits:
    """The traits of one pass that is not optcli's own. Raises what is wrong with it or its options."""
    assert use.reference is not None
    code = user_code.digest(use.reference, folder, digests)
    ingredients = {"step": f"traits {use.name}", "code": code, "options": use.options}
    key = key_of(ingredients)
    entry = store.get("traits", key)
    if entry is not None:
        # The file may have moved since: its content is what counts.
        return messages.read(Traits, {**entry.record, "reference": use.reference})
    with store.lock("traits", key), store.work("traits", key) as work:
        traits = _described(TraitsRequest(use, folder, code), store.log_folder(key) / "log.txt")
        store.put("traits", key, work, messages.to_record(traits), ingredients)
    return traits


def _described(request: TraitsRequest, log: Path) -> Traits:
    try:
        return run("optcli.pipeline.plugins:describe", request, Traits, log=log, timeout_s=300)
    except StepError as error:  # the code ended the process or crashed it: the file is what is wrong
        raise InputError(
            f"{request.use.reference} cannot be inspected: {error.message}",
            place=request.use.place,
            hint=f"importing it must do nothing but define things; its last words are in {log}",
        ) from error
