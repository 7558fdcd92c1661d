"""Which output of a model holds scores of classes, as its recipe says. A shape does not say it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from optcli.accuracy.metrics import reads
from optcli.pipeline.decoding import Decoding
from optcli.pipeline.model_files.built_variant import Samples
from optcli.recipe import load


def of_samples(samples: Samples, outputs: Sequence[str], *, answers_classes: bool) -> str | None:
    """The output with the scores, None where the recipe does not say that there is one.

    The recipe says it by its metric. Without a metric it does so by `class_names`, or where the server
    answers images with classes; or the model's file says what it is for. What is decoded is something
    else.
    """
    if samples.decoding.known is not None or not outputs:
        return None
    name = samples.output or outputs[0]
    if samples.metric is None:
        exporter = samples.decoding.exporter
        classifies = exporter is not None and exporter.task == "classify"
        named = answers_classes or classifies or samples.class_names is not None
        return name if named else None
    return name if name in outputs and reads(samples.metric) == "logits" else None


def of_recipe(path: Path, outputs: Sequence[str]) -> str | None:
    """The same by the recipe of a server that has these outputs. Raises as `recipe.load`."""
    recipe = load(path)
    said = Samples(
        decoding=Decoding(recipe.postprocess, "recipe"),
        metric=recipe.accuracy.metric if recipe.accuracy else None,
        output=recipe.accuracy.output if recipe.accuracy else None,
        class_names=recipe.class_names,
    )
    return of_samples(said, outputs, answers_classes=False)
