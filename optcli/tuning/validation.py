"""The samples that the search chooses by: never those that judge the finalists."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from optcli import data
from optcli.data import DataSettings
from optcli.data.selection import identities, overlap
from optcli.data.settings import Split
from optcli.errors import UsageError
from optcli.recipe import Recipe
from optcli.settings import TensorSpec
from optcli.workers import Channel, run

# The share of the training or calibration samples that is split off, and its seed.
_SHARE = 0.2
_SEED = 17
# How many validation samples judge first; the others follow where these leave hope.
_PART = 256
_TIMEOUT_S = 3600.0


@dataclass(frozen=True)
class Validation:
    """Which samples choose, and in words where from; `data` are all roles but evaluation."""

    samples: DataSettings
    taken_from: str
    data: dict[str, DataSettings]

    def part(self, count: int) -> DataSettings | None:
        """The first to judge by, of a set of `count`; None where it is hardly smaller than all."""
        if count <= 2 * _PART:
            return None
        return self.samples.model_copy(update={"samples": _PART})


def validation_of(recipe: Recipe) -> Validation:
    """The recipe's own validation samples, else a part of the training or calibration samples.

    What is split off is no longer trained or calibrated on. Raises `UsageError` where nothing can be.
    """
    if "validation" in recipe.data:
        return Validation(recipe.data["validation"], "data.validation", _without(recipe, {}))
    for role in ("training", "calibration"):
        if role not in recipe.data:
            continue
        rest, part = _divided(recipe.data[role])
        if part is None or rest is None:
            raise UsageError(
                f"the search needs validation samples, and data.{role} lists its ids in a file",
                place=str(recipe.path),
                hint="give the recipe data.validation: samples that are not in data.evaluation",
            )
        named = f"{100 * _SHARE:.0f} % of data.{role}, which are not used for {_USES[role]}"
        return Validation(part, named, _without(recipe, {role: rest, "validation": part}))
    raise UsageError(
        "the search needs validation samples to choose by",
        place=str(recipe.path),
        hint="give the recipe data.validation: samples that are not in data.evaluation",
    )


@dataclass(frozen=True)
class SharedRequest:
    """Samples, and other roles that may have some of the same content."""

    folder: Path
    samples: DataSettings
    others: dict[str, DataSettings]
    inputs: tuple[TensorSpec, ...]


def separated(validation: Validation, recipe: Recipe) -> Validation:
    """The validation samples without those whose content another role has too; it says how many.

    Calibration samples are mostly part of the training set, and sets have copies. A worker reads all of
    these samples. Raises `UsageError` where none is left, and what is wrong with the data.
    """
    others = {role: each for role, each in validation.data.items() if role != "validation"}
    if not others:
        return validation
    request = SharedRequest(recipe.folder, validation.samples, others, recipe.inputs)
    by_role = run(
        "optcli.tuning.validation:shared",
        request,
        dict[str, list[str]],
        timeout_s=_TIMEOUT_S,
        reads=validation.samples.source,
    )
    ids = sorted({each for names in by_role.values() for each in names})
    if not ids:
        return validation
    without = (*validation.samples.without, *ids)
    samples = validation.samples.model_copy(update={"without": without})
    roles = " and ".join(f"{len(names)} that {role}" for role, names in by_role.items() if names)
    divided = {"validation": samples} if "validation" in validation.data else {}
    return replace(
        validation,
        samples=samples,
        taken_from=f"{validation.taken_from}, without {roles} has too",
        data={**validation.data, **divided},
    )


def shared(request: SharedRequest, channel: Channel | None) -> dict[str, list[str]]:
    """In a worker: by role, the ids of samples whose content it has too."""
    opened = {
        role: data.open(each, request.folder, request.inputs) for role, each in request.others.items()
    }
    own = identities(data.open(request.samples, request.folder, request.inputs))
    overlaps = {role: [name for name, _ in overlap(own, identities(of))] for role, of in opened.items()}
    if len({name for names in overlaps.values() for name in names}) == len(own):
        raise UsageError(
            "the search has no samples to choose by: other roles have all of them",
            place="data.validation",
            hint="give the recipe data.validation: samples that no other role has",
        )
    return overlaps


def _without(recipe: Recipe, changed: dict[str, DataSettings]) -> dict[str, DataSettings]:
    return {k: v for k, v in {**recipe.data, **changed}.items() if k != "evaluation"}


_USES = {"training": "training", "calibration": "calibration"}


def _divided(settings: DataSettings) -> tuple[DataSettings | None, DataSettings | None]:
    """Two disjoint parts of a role's samples; None where its split cannot be divided."""
    split = settings.split
    if split is not None and split.file:
        return None, None
    if split is not None and split.seed is not None:
        edge = split.stop - _SHARE * (split.stop - split.start)
        parts = [
            split.model_copy(update={"stop": edge}),
            split.model_copy(update={"start": edge}),
        ]
    else:
        of = split.name if split is not None else None
        whole = Split(seed=_SEED, of=of)
        parts = [
            whole.model_copy(update={"stop": 1 - _SHARE}),
            whole.model_copy(update={"start": 1 - _SHARE}),
        ]
    shares = (1 - _SHARE, _SHARE)
    counts = [settings.samples and max(1, int(settings.samples * share)) for share in shares]
    rest, part = (
        settings.model_copy(update={"split": each, "samples": count})
        for each, count in zip(parts, counts, strict=True)
    )
    return rest, part
