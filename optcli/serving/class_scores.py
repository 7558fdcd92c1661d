"""Which output of a model holds scores of classes, as its recipe says. A shape does not say it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from optcli.model_files.built_variant import Samples
from optcli.outputs import SampleOutput, describe
from optcli.recipe import load


def of_samples(samples: Samples, outputs: Sequence[str], *, answers_classes: bool) -> str | None:
    """The output with the scores, None where the recipe does not say that there is one.

    The recipe says it by its metric. Without a metric it does so by `class_names`, or where the server
    answers images with classes. What is post-processed is something else.
    """
    if samples.postprocess is not None or not outputs:
        return None
    if samples.metric is None:
        named = answers_classes or samples.class_names is not None
        return (samples.output or outputs[0]) if named else None
    meanings = describe(
        [SampleOutput(name, None, "float32") for name in outputs],
        metric=samples.metric,
        metric_output=samples.output,
    )
    scores = [each.output for each in meanings if each.parts[0].kind == "logits"]
    return scores[0] if scores else None


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
