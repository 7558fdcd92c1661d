"""What a recipe's variants are judged by, with the content of the data and of the code that judge."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optcli import data
from optcli.errors import InputError, UsageError
from optcli.files import regular_files
from optcli.files.digest import FileDigests, of_value
from optcli.recipe import Recipe
from optcli.results.gate import Terms, VariantTerms
from optcli.settings import user_code
from optcli.settings.accuracy import AccuracySettings


def terms_of(recipe: Recipe, digests: FileDigests) -> Terms:
    """The terms of a recipe as its files are now. Raises `InputError` where a file is missing."""
    code = {
        name: user_code.digest(r, recipe.folder, digests) for name, r in judging_code(recipe).items()
    }
    code |= {name: digests.of(file) for name, file in judging_files(recipe).items()}
    after, evaluation, preparation = recipe.postprocess, None, None
    if "evaluation" in recipe.data:
        ingredients = data.ingredients(recipe.data["evaluation"], recipe.folder, digests)
        settings, content = dict(ingredients["settings"]), dict(ingredients["content"])
        if "code" in content:
            code["data.evaluation"] = str(content.pop("code"))
        preparation = settings.pop("prepare") or {}
        evaluation = {**settings, "content": of_value(content)}
    return Terms(
        evaluation=evaluation,
        preparation=preparation,
        samples={
            role: each.without_paths() for role, each in recipe.data.items() if role != "evaluation"
        },
        postprocess=after and after.model_dump(mode="json", exclude_none=True),
        accuracy=recipe.accuracy,
        slo=recipe.slo,
        gate=recipe.gate,
        inputs=recipe.inputs,
        code=code,
        threads=recipe.latency.threads,
        baseline=recipe.baseline,
        devices={
            name: recipe.devices[name].model_dump(mode="json", exclude_none=True)
            for name in recipe.gate.devices or ()
            if name in recipe.devices
        },
        variants={
            # A variant without a runner of its own names no threads.
            name: VariantTerms(
                gate=variant.gate,
                threads=variant.runner and getattr(variant.runner.configured, "threads", None),
            )
            for name, variant in recipe.variants.items()
        },
    )


def judged_by(recipe: Recipe, digests: FileDigests, but: Sequence[str]) -> tuple[Any, Any, list[str]]:
    """The metric's settings without those in `but`, those of `postprocess`, digests of users' files."""
    metric = recipe.accuracy and recipe.accuracy.model_dump(mode="json", exclude={*but, "text"})
    decoding = recipe.postprocess and recipe.postprocess.model_dump(mode="json")
    users = [user_code.digest(each, recipe.folder, digests) for each in judging_code(recipe).values()]
    users += [digests.of(file) for file in judging_files(recipe).values()]
    return metric, decoding, users


def evaluated_on(recipe: Recipe, digests: FileDigests, but: Sequence[str]) -> str:
    """A digest of the samples and of all that turns outputs into a figure.

    Two accuracies with the same digest are comparable. It holds content and settings alone: another
    version of optcli or of a library gives the same digest.
    """
    ingredients = data.ingredients(recipe.data["evaluation"], recipe.folder, digests)
    samples = {part: ingredients[part] for part in ("settings", "content")}
    return of_value([samples, *judged_by(recipe, digests, but)])


def require_evaluation(recipe: Recipe, place: Path, purpose: str) -> None:
    """Raise `UsageError` where a recipe has no evaluation data for a purpose, such as `to judge on`."""
    if "evaluation" not in recipe.data:
        raise UsageError(
            f"the recipe names no data {purpose}",
            place=str(place),
            hint="add data: {evaluation: {source: ...}}",
        )


def judging_code(recipe: Recipe) -> dict[str, str]:
    """References to the user's own code that judges, by what it does."""
    references = {}
    if recipe.accuracy is not None and recipe.accuracy.metric.startswith("python:"):
        references["metric"] = recipe.accuracy.metric.removeprefix("python:")
    if recipe.postprocess is not None and recipe.postprocess.python is not None:
        references["postprocess"] = recipe.postprocess.python
    return references


def judging_files(recipe: Recipe) -> dict[str, Path]:
    """Files of the user's, no code, that judge beside the data, by the key that names them."""
    named = recipe.accuracy.text if recipe.accuracy is not None else None
    if named is None:
        return {}
    file = recipe.folder / regular_files.expanded(named)
    if wrong := regular_files.problem(file, named):
        raise InputError(wrong, place="accuracy.text", hint="a path relative to the recipe")
    return {"accuracy.text": file}


def code_of(settings: AccuracySettings | None) -> list[str]:
    """The modules of optcli from which an evaluation and a comparison start, for their keys."""
    starts = ["accuracy/process.py", "pipeline/accuracy.py"]
    if settings is not None and not settings.metric.startswith("python:"):
        starts.append(f"accuracy/metrics/{settings.metric}.py")
    return starts
