"""Which output of a model holds scores of classes, as its recipe says. A shape does not say it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from optcli.accuracy.metrics import reads
from optcli.model_files.built_variant import Samples
from optcli.recipe import load


def of_samples(samples: Samples, outputs: Sequence[str], *, answers_classes: bool) -> str | None:
    """The output with the scores, None where the recipe does not say that there is one.

    The recipe says it by its metric. Without a metric it does so by `class_names`, or where the server
    answers images with classes. What is post-processed is something else.
    """
    if samples.postprocess is not None or not outputs:
        return None
    name = samples.output or outputs[0]
    if samples.metric is None:
        return name if answers_classes or samples.class_names is not None else None
    return name if name in outputs and reads(samples.metric) == "logits" else None


def of_recipe(path: Path, outputs: Sequence[str]) -> str | None:
    """The same by the recipe of a server that has these outputs. Raises as `recipe.load`."""
    recipe = load(path)
    said = Samples(
        postprocess=recipe.postprocess,
        metric=recipe.accuracy.metric if recipe.accuracy else None,
        output=recipe.accuracy.output if recipe.accuracy else None,
        class_names=recipe.class_names,
    )
    return of_samples(said, outputs, answers_classes=False)
