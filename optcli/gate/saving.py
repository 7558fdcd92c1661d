"""Saving a build as a baseline, and bringing back what a gate compares with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from optcli.errors import UsageError, did_you_mean
from optcli.gate import baselines
from optcli.gate.baselines import BaselineVariant
from optcli.pipeline.trusting import is_fetched
from optcli.results import Report, first_wrong
from optcli.settings import TensorSpec
from optcli.store import Store


def save(path: Path, report: Report, place: Path, store: Store, only: Sequence[str] = ()) -> Path:
    """Pack the artifacts of a build with its report into `path`; `only` names variants.

    `place` is where the report was read. Raises `UsageError` where a variant is not there, or the
    store no longer has what the report speaks of.
    """
    variants = {
        name: variant
        for name, variant in report.variants.items()
        if variant.artifact is not None and (not only or name in only)
    }
    for name in only:
        if name not in variants:
            raise UsageError(
                f"the build has no artifact {name!r}",
                place=str(place),
                hint=did_you_mean(name, [n for n, v in report.variants.items() if v.artifact]),
            )
    if not variants:
        hint = "the report says why no variant was built"
        raise UsageError("the build made no artifact", place=str(place), hint=hint)
    packed = {}
    own = True
    inputs: tuple[TensorSpec, ...] = ()
    for name, variant in variants.items():
        assert variant.artifact is not None
        entry = store.get("artifact", variant.artifact.key)
        if entry is None:
            raise UsageError(
                f"the store no longer has the artifact of {name}",
                place=str(store.root),
                hint=f"run `optcli build {report.recipe.path}` again, or name its --store",
            )
        runner = variant.runner or {}
        requested = runner.get("requested") or {}
        if not isinstance(runner.get("name"), str) or not isinstance(requested, dict):
            raise _damaged(place, f"variants.{name}.runner: wanted a name and its options")
        entries = entry.lineage(store.peek)
        steps = tuple(each.step() for each in entries)
        own = own and not is_fetched(entries)
        packed[name] = BaselineVariant(entry.artifact(), runner["name"], requested, steps)
        inputs = tuple(TensorSpec.model_validate(spec) for spec in steps[-1]["inputs"])
    try:
        return baselines.save(path, packed, inputs, report, store, own=own)
    except ValidationError as error:
        raise _damaged(place, first_wrong(error)) from error


def _damaged(place: Path, wrong: str) -> UsageError:
    message = f"this report cannot be saved: {wrong}"
    return UsageError(message, place=str(place), hint="run `optcli build RECIPE` to write it again")
