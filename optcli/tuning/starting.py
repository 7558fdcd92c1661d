"""What a search begins with: the recipe, the baseline, the samples, trials of an earlier run.

It refuses what cannot be searched.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from optcli import environment, passes
from optcli.accuracy import require_metric
from optcli.artifact import Format
from optcli.errors import RecipeError, UsageError, did_you_mean, shown_path
from optcli.files.digest import of_value
from optcli.pipeline import plugins
from optcli.pipeline.plan import plan_of, source_of
from optcli.pipeline.terms import judging_code
from optcli.recipe import Recipe, load
from optcli.results.tuning import TuningTrial
from optcli.settings import batch_range, user_code
from optcli.store import Store, disk
from optcli.tuning import finalists
from optcli.tuning.space import Space
from optcli.tuning.trials import WITHOUT_METRIC
from optcli.tuning.validation import Validation, separated, validation_of

# Libraries whose versions decide what a trial is.
LIBRARIES = ("openvino", "onnxruntime", "torch", "nncf")


@dataclass(frozen=True)
class SearchStart:
    """What a search begins with: the recipe, the variant to compare with, the samples."""

    recipe: Recipe
    overrides: tuple[str, ...]
    baseline: tuple[str, Mapping[str, Any]]
    validation: Validation


def as_overrides(**options: Any) -> tuple[str, ...]:
    """Options as overrides of the recipe."""
    return tuple(
        f"{name if name == 'seed' else f'tune.{name}'}={json.dumps(value)}"
        for name, value in options.items()
        if value is not None
    )


def started(path: Path, overrides: tuple[str, ...]) -> SearchStart:
    """The recipe and what the search takes of it. Raises `RecipeError` and `UsageError`."""
    recipe, baseline = _read(path, overrides)
    if "evaluation" not in recipe.data:
        raise UsageError(
            "the recipe has no samples to judge the finalists by",
            place=shown_path(recipe.path),
            hint="give the recipe data.evaluation, and accuracy: {metric: ..., max_drop: ...}",
        )
    if recipe.accuracy is not None:
        require_metric(recipe.accuracy)
    _require_batch_size(recipe)
    finalists.settings_of(overrides)  # what cannot be written at the end is said now
    validation = validation_of(recipe)
    alone = ("matrix=null",) if recipe.matrix else ()  # it would add its variants to every trial
    return SearchStart(
        recipe, (*overrides, *alone, *_divided(validation, recipe)), baseline, validation
    )


def with_own_samples(start: SearchStart) -> SearchStart:
    """The same with validation samples that no other role has, by content: see `separated`."""
    validation = separated(start.validation, start.recipe)
    divided = _divided(validation, start.recipe)
    return replace(start, validation=validation, overrides=(*start.overrides, *divided))


def _divided(validation: Validation, recipe: Recipe) -> tuple[str, ...]:
    """The roles that the search divided, as overrides."""
    more = finalists.changes(validation.data, recipe)
    return tuple(f"data.{role}={json.dumps(each)}" for role, each in more.get("data", {}).items())


def _read(path: Path, overrides: tuple[str, ...]) -> tuple[Recipe, tuple[str, Mapping[str, Any]]]:
    """The recipe, and its baseline as a recipe writes it; a recipe may have no variants."""
    try:
        recipe = load(path, overrides)
    except RecipeError as error:
        if not any(problem.message == "missing key 'variants'" for problem in error.problems):
            raise
        recipe = load(path, (*overrides, "variants={source: []}"))
        name = "eager" if source_of(recipe).format == Format.TORCH else "source"
        alone = recipe.model_copy(update={"variants": {}, "baseline": name})
        return alone, (name, {"passes": []})
    variant = recipe.variants[recipe.baseline]
    uses = [{use.name: use.options} if use.options else use.name for use in variant.passes]
    written: dict[str, Any] = {"passes": uses}
    if variant.runner is not None:
        options = variant.runner.configured.model_dump(mode="json", exclude_unset=True)
        written["runner"] = {"name": variant.runner.name, **options}
    return recipe, (recipe.baseline, written)


def formats_read(start: SearchStart, store: Store) -> dict[str, tuple[Format, ...]]:
    """The formats that the passes of `tune.passes` read which are not optcli's own.

    A worker imports them. Raises what is wrong with them or with the first values of their options.
    """
    recipe = start.recipe
    others = {n: each for n, each in recipe.tune.passes.items() if n not in passes.own_names()}
    if not others:
        return {}
    firsts = {n: {k: v[0] for k, v in options.items() if v} for n, options in others.items()}
    listed = json.dumps({"source": [], "own": [{n: options} for n, options in firsts.items()]})
    read = load(recipe.path, [*start.overrides, f"variants={listed}", "baseline=source"])
    place = f"{shown_path(recipe.path)}, tune.passes"
    uses = [use.model_copy(update={"place": place}) for use in read.variants["own"].passes]
    traits_of = [plugins.traits_of(use, recipe.folder, store, store.digests) for use in uses]
    return {use.name: traits.accepts for use, traits in zip(uses, traits_of, strict=True)}


def require_known(recipe: Recipe) -> None:
    """Raise `UsageError` for a pass or an option that `tune.passes` misspells."""
    known = [*passes.names(), *recipe.plugins]
    for name, options in recipe.tune.passes.items():
        if name in known and name not in passes.own_names():  # a worker reads what they take
            continue
        if name not in known:
            raise UsageError(
                f"tune.passes: there is no pass {name!r}",
                place=shown_path(recipe.path),
                hint=did_you_mean(name, known) or "optcli passes lists them; plugins names your own",
            )
        fields = list(passes.find(name).model_fields)
        for option in options:
            if option not in fields:
                raise UsageError(
                    f"tune.passes: {name} has no option {option!r}",
                    place=shown_path(recipe.path),
                    hint=did_you_mean(option, fields) or f"it has {', '.join(fields)}",
                )


def _require_batch_size(recipe: Recipe) -> None:
    """Raise `UsageError` for a batch size that the inputs do not take."""
    size, span = recipe.tune.batch_size, batch_range(recipe.inputs)
    if size is not None and not span.min <= size <= span.max:
        raise UsageError(
            f"the inputs take batch sizes {span.min} to {span.max}, found {size}",
            place="tune.batch_size",
            hint="name one of these, or widen the range of the inputs",
        )


def require_something(space: Space) -> None:
    """Raise `UsageError` where nothing of what is wanted can be tried here."""
    if not space.runtimes:
        raise UsageError(
            "there is nothing to try: " + (" ".join(space.left_out) or "no runtime is left"),
            place=shown_path(space.recipe.path),
            hint="widen tune.runtimes and tune.precisions, or install a runtime",
        )


def batch_sizes(recipe: Recipe) -> tuple[int, ...]:
    """The batch sizes that the objective is about."""
    size = recipe.tune.batch_size
    return (size,) if size is not None else recipe.latency.batch_sizes


def bar_of(recipe: Recipe) -> float:
    """The bar before anything is judged: where it is a ratio, that of a perfect baseline."""
    return recipe.accuracy.bar(1.0) if recipe.accuracy is not None else WITHOUT_METRIC


def bare(start: SearchStart) -> Recipe:
    """The recipe with the network as it is for its only variant."""
    return load(start.recipe.path, [*start.overrides, "variants={source: []}", "baseline=source"])


def key_of(start: SearchStart, store: Store) -> str:
    """What decides the trials: recipe, model, data and the user's code by content, the machine."""
    recipe = start.recipe
    wanted = recipe.tune.model_dump(mode="json", exclude={"minutes", "finalists"})
    planned = plan_of(bare(start), {}, store.digests)
    code = (*recipe.plugins.values(), *judging_code(recipe).values())
    sections = {"inputs", "latency", "accuracy", "slo", "seed", "postprocess"}
    return of_value(
        {
            "model": planned.variants[0].steps[0].key,
            "data": planned.role_keys,
            "baseline": start.baseline,
            "recipe": recipe.model_dump(mode="json", include=sections),
            "tune": wanted,
            "users": [user_code.digest(each, recipe.folder, store.digests) for each in code],
            "code": store.digests.of_folder(Path(__file__).parent),
            "environment": environment.describe(LIBRARIES),
        }
    )


class Study:
    """The trials at `path`, one JSON object a line; a line that was not written whole is left out.

    A search that was killed goes on with the trials that it finished.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.trials: list[TuningTrial] = _trials_in(path)

    def keep(self, trial: TuningTrial) -> None:
        """Add a trial that has ended. Raises `StoreError` where it cannot be written."""
        self.trials.append(trial)
        text = "".join(f"{each.model_dump_json()}\n" for each in self.trials)
        with disk.failures(self._path.parent):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fresh = self._path.with_name(f".{self._path.name}.{os.getpid()}")
            disk.write_whole(fresh, text.encode())
            fresh.replace(self._path)


def _trials_in(path: Path) -> list[TuningTrial]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    trials = []
    for line in lines:
        try:
            trials.append(TuningTrial.model_validate_json(line))
        except ValidationError:  # written by another version: what follows it cannot be relied on
            break
    return trials
