"""Passes from the user's own files and from other packages: checked in a worker, never run here."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from optcli import user_code
from optcli.artifact import Format
from optcli.digest import FileDigests
from optcli.errors import (
    InputError,
    OptcliError,
    Problem,
    RecipeError,
    StepError,
    UsageError,
    first_line,
)
from optcli.passes import Pass, Traits
from optcli.recipe import PassUse, Recipe, check_formats, option_problems
from optcli.store import Store, key_of
from optcli.workers import Channel, run


def traits(recipe: Recipe, store: Store, digests: FileDigests) -> dict[str, Traits]:
    """The traits of every pass that is not optcli's own, by its place in the recipe.

    Remembered in the store under the code's digest and the options, so that a cached build starts
    no worker for it. Raises `RecipeError` with everything that is wrong with options and formats.
    """
    uses = [use for v in recipe.variants.values() for use in v.passes if use.reference is not None]
    found: dict[str, Traits] = {}
    problems: list[Problem] = []
    for use in uses:
        try:
            found[use.place] = _remembered(use, recipe.folder, store, digests)
        except RecipeError as error:
            problems.extend(error.problems)
        except OptcliError as error:
            error.place = error.place or use.place
            raise
    if problems:
        raise RecipeError(problems)
    if uses:
        check_formats(recipe, found)
    return found


def describe(payload: dict[str, Any], channel: Channel) -> dict[str, Any]:
    """In a worker: import the class, check the options, tell its traits."""
    from pydantic import ValidationError

    kind: Any = user_code.load(payload["reference"], Path(payload["folder"]))
    if not (inspect.isclass(kind) and issubclass(kind, Pass)):
        raise UsageError(
            f"{payload['reference']} is not a pass: wanted a subclass of optcli.passes.Pass",
            hint="see docs/add-a-pass.md",
        )
    if lacking := sorted({*kind.__abstractmethods__} | ({"accepts"} - {*dir(kind)})):
        raise UsageError(
            f"the pass {payload['reference']} lacks {', '.join(lacking)}",
            hint="see docs/add-a-pass.md",
        )
    use = PassUse(name=payload["name"], options=payload["options"], place=payload["place"])
    try:
        configured = kind.model_validate(use.options)
    except ValidationError as error:
        raise RecipeError(option_problems(use, kind, error)) from None
    _check_formats(configured, payload["reference"])
    return Traits.of(configured, use.name, payload["code"], payload["reference"]).to_record()


def _check_formats(configured: Pass, reference: str) -> None:
    """Raise `UsageError` where a pass does not say in formats what it reads and makes."""
    wanted = f"wanted members of optcli.artifact.Format: {', '.join(one.name for one in Format)}"
    for source in configured.accepts:
        if not isinstance(source, Format):
            raise UsageError(f"{reference}: accepts holds {source!r}", hint=wanted)
        try:
            made = configured.produces(source)
        except Exception as error:
            what = f"{type(error).__name__}: {first_line(error)}"
            raise UsageError(
                f"{reference}: produces({source}) raises {what}", hint="return a Format"
            ) from error
        if not isinstance(made, Format):
            raise UsageError(f"{reference}: produces({source}) gives {made!r}", hint=wanted)


def _remembered(use: PassUse, folder: Path, store: Store, digests: FileDigests) -> Traits:
    assert use.reference is not None
    code = user_code.digest(use.reference, folder, digests)
    ingredients = {"step": f"traits {use.name}", "code": code, "options": use.options}
    key = key_of(ingredients)
    known = store.get("traits", key)
    if known is not None:
        # The file may have moved since: its content is what counts.
        return Traits.from_record({**known.record, "reference": use.reference})
    payload = {
        "name": use.name,
        "reference": use.reference,
        "options": use.options,
        "place": use.place,
        "folder": str(folder),
        "code": code,
    }
    with store.lock("traits", key), store.work("traits", key) as work:
        record = _described(use, payload, store.log_folder(key) / "log.txt")
        store.put("traits", key, work, record, ingredients)
    return Traits.from_record(record)


def _described(use: PassUse, payload: dict[str, Any], log: Path) -> dict[str, Any]:
    try:
        return dict(run("optcli.pipeline.plugins:describe", payload, log=log, timeout_s=300))
    except StepError as error:  # the code ended the process or crashed it: the file is what is wrong
        raise InputError(
            f"{use.reference} cannot be looked at: {error.message}",
            place=use.place,
            hint=f"importing it must do nothing but define things; its last words are in {log}",
        ) from error
