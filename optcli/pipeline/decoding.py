"""What a recipe, or the model's own file, says of its outputs: how detections are read from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from optcli import outputs
from optcli.accuracy.metrics import reads
from optcli.artifact import EMBEDDED_POSTPROCESS, Artifact
from optcli.errors import InputError, did_you_mean
from optcli.models.formats import exporter_metadata
from optcli.observer import Observer
from optcli.outputs.describing import of_one_sample
from optcli.outputs.meaning import Source
from optcli.recipe import Recipe
from optcli.results import Accuracy
from optcli.settings.outputs import OutputPart
from optcli.settings.postprocess import PostprocessSettings

_SAID_BY = {
    "metadata": "outputs are decoded as the model's file says",
    "shape": "outputs are decoded as their form suggests, to compare detections; that is a guess: if it"
    " is wrong, write the right one",
}


@dataclass(frozen=True)
class Decoding:
    """How detections are read from the outputs of an artifact, and who says so.

    `settings` None: they are not. A `source` of `shape` is a guess: it serves comparisons alone.
    `exporter` is what the exporter of the model wrote into its file.
    """

    settings: PostprocessSettings | None
    source: Source
    exporter: outputs.Exported | None = None

    @property
    def class_names(self) -> tuple[str, ...] | None:
        """The names of the classes that the model's file has."""
        return None if self.exporter is None else self.exporter.names or None

    @property
    def known(self) -> PostprocessSettings | None:
        """What somebody says; None for a guess, by which nothing is answered."""
        return None if self.source == "shape" else self.settings

    @property
    def words(self) -> str | None:
        """It in a sentence, with what a recipe would say; None where the recipe says it itself."""
        if self.settings is None or self.source not in _SAID_BY:
            return None
        return f"{_SAID_BY[self.source]}: {self.written}"

    @property
    def written(self) -> str:
        """As a recipe says it: `postprocess: {rows: {}}`."""
        assert self.settings is not None
        plain = self.settings.model_dump(mode="json", exclude_defaults=True)
        return f"postprocess: {yaml.safe_dump(plain, default_flow_style=True, width=1000).strip()}"


UNKNOWN = Decoding(None, "unknown")


def decoding_of(recipe: Recipe, artifact: Artifact) -> Decoding:
    """How the outputs of an artifact are decoded: as the recipe says, else its file, else a guess.

    Nothing decodes them where the recipe has a metric that reads the outputs themselves, as code of the
    user's does, or says of the outputs that they hold no boxes.
    """
    metadata = exporter_metadata.of_facts(artifact.facts)
    known = outputs.exported(metadata)
    own = own_postprocess(artifact.facts)
    if own is not None:
        return Decoding(own, "recipe", known)
    if recipe.postprocess is not None:
        return Decoding(recipe.postprocess, "recipe", known)
    metric = "" if recipe.accuracy is None else recipe.accuracy.metric
    if metric.startswith("python:") or reads(metric) is not None:
        return Decoding(None, "recipe", known)
    declared, probe = outputs.of_facts(artifact.facts)
    settings, source = outputs.decoding(declared, recipe.inputs, metadata), "metadata"
    if settings is None and not metric and known is None:
        settings, source = outputs.guessed_decoding(declared, recipe.inputs, probe), "shape"
    if settings is None or not _may_hold_boxes(recipe, declared, settings):
        return replace(UNKNOWN, exporter=known)
    if any(isinstance(spec.value, str) for spec in recipe.inputs):
        settings = settings.told_the_size()
    return Decoding(settings, source, known)  # type: ignore[arg-type]


def described(
    recipe: Recipe, artifact: Artifact
) -> tuple[PostprocessSettings | None, dict[str, tuple[OutputPart, ...]]]:
    """How an artifact is decoded, and what each output holds: as somebody says, else by its shape."""
    declared, _ = outputs.of_facts(artifact.facts)
    settings, judged = decoding_of(recipe, artifact).settings, recipe.accuracy
    meanings = outputs.meanings(
        declared,
        recipe.inputs,
        metadata=exporter_metadata.of_facts(artifact.facts),
        settings=recipe.outputs if declared else None,
        postprocess=settings,
        metric_reads=reads(judged.metric) if judged else None,
        metric_output=judged.output if judged else None,
    )
    return settings, {each.output: each.parts for each in meanings}


def said_of_outputs(recipe: Recipe) -> list[Any]:
    """What a recipe says of its outputs, as plain data."""
    judged = recipe.accuracy
    return [
        {name: each.model_dump(mode="json") for name, each in recipe.outputs.items()},
        recipe.postprocess and recipe.postprocess.model_dump(mode="json"),
        judged and [reads(judged.metric), judged.output],
    ]


def own_postprocess(facts: Mapping[str, Any]) -> PostprocessSettings | None:
    """How the rows of a model that decodes its detections itself are read; None: it does not.

    Facts of an artifact from elsewhere may be anything, but no code of theirs is named by them.
    """
    try:
        own = PostprocessSettings.model_validate(facts[EMBEDDED_POSTPROCESS])
    except (KeyError, ValueError):
        return None
    return None if own.rows is None else own


def of_own_form(evaluated: Accuracy, artifact: Artifact) -> Accuracy:
    """The same of a model that decodes its detections: the recipe asks for outputs of that form."""
    error = evaluated.output_error
    if error is None or own_postprocess(artifact.facts) is None:
        return evaluated
    return evaluated.model_copy(update={"output_error": error.model_copy(update={"changes": ()})})


def _may_hold_boxes(
    recipe: Recipe, declared: tuple[outputs.FileOutput, ...], postprocess: PostprocessSettings
) -> bool:
    """Whether what the recipe says under `outputs` leaves room for boxes where they would be read."""
    read = [*_named(postprocess)[1], *(each.name for each in declared[:1])]
    settings = recipe.outputs.get(read[0]) if read else None
    return settings is None or any(part.kind in ("boxes", "rows") for part in settings.parts)


def with_decoding(recipe: Recipe, baseline: Artifact, observer: Observer) -> tuple[Recipe, bool]:
    """The recipe with the decoding of its baseline, and whether that is a guess.

    The observer hears of a decoding that the recipe does not have.
    """
    detector = decoding_of(recipe, baseline)
    if detector.words is None:
        return recipe, False
    observer.warned("accuracy", detector.words)
    return recipe.model_copy(update={"postprocess": detector.settings}), detector.source == "shape"


def least_score(recipe: Recipe) -> float:
    """The smallest score of a detection that the recipe asks for."""
    return max((getattr(how, "score", 0.0) for _, how in recipe.postprocess or ()), default=0.0)


def require_outputs(recipe: Recipe, source: Artifact) -> None:
    """Raise `InputError` where the recipe speaks of outputs that the model does not have.

    Also of parts that are of another size. `source` is the model as it came from its source.
    """
    declared, _ = outputs.of_facts(source.facts)
    if not declared:
        return
    outputs.describe(of_one_sample(declared), settings=recipe.outputs)
    names = [each.name for each in declared]
    kind, settings = _named(recipe.postprocess)
    read = [(f"postprocess.{kind}", name) for name in settings]
    if recipe.accuracy is not None and recipe.accuracy.output is not None:
        read.append(("accuracy.output", recipe.accuracy.output))
    for place, name in read:
        if name not in names:
            raise InputError(
                f"the model has no output {name!r}, it has {', '.join(names)}",
                place=place,
                hint=did_you_mean(name, names, f"name one of {', '.join(names)}"),
            )


def _named(settings: PostprocessSettings | None) -> tuple[str, tuple[str, ...]]:
    """The kind of a decoding, and the outputs that it names."""
    if settings is None or settings.detector is None:
        return "", ()
    from optcli.outputs.postprocess import outputs_of

    kind, how = settings.detector
    return kind, outputs_of(how)
