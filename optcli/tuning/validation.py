"""The samples that the search chooses by: never those that judge the finalists."""

from __future__ import annotations

from dataclasses import dataclass

from optcli.data import DataSettings
from optcli.data.settings import Split
from optcli.errors import UsageError
from optcli.recipe import Recipe

# The share of the training or calibration samples that is split off, and its seed.
_SHARE = 0.2
_SEED = 17
# How many validation samples judge first; the others follow where these leave hope.
_PART = 256
# How many show whether outputs are about right.
_FEW = 32


@dataclass(frozen=True)
class Validation:
    """Which samples choose, and in words where from; `data` are all roles but evaluation."""

    samples: DataSettings
    taken_from: str
    data: dict[str, DataSettings]

    def few(self) -> DataSettings:
        """Samples for a first look at the outputs."""
        return self.samples.model_copy(update={"samples": _FEW})

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
