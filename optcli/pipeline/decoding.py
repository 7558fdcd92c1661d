"""How outputs are decoded: as the recipe says, else as the exporter wrote into the model's file."""

from __future__ import annotations

import yaml

from optcli import outputs
from optcli.artifact import Artifact
from optcli.formats import exporter_metadata
from optcli.observer import Observer
from optcli.recipe import Recipe


def with_decoding(recipe: Recipe, baseline: Artifact, observer: Observer) -> Recipe:
    """The recipe, with the decoding that the exporter of a detector says where the recipe has none."""
    said = baseline.facts.get(exporter_metadata.FACT)
    if recipe.postprocess is not None or said is None:
        return recipe
    declared = [
        outputs.Declared(each["name"], tuple(each["shape"]), each["dtype"]) for each in said["outputs"]
    ]
    found = outputs.decoding(declared, recipe.inputs, said["metadata"])
    if found is None:
        return recipe
    written = yaml.safe_dump(
        found.model_dump(mode="json", exclude_defaults=True), default_flow_style=True, width=1000
    )
    observer.warned(
        "accuracy", f"outputs are decoded as the model's file says: postprocess: {written.strip()}"
    )
    return recipe.model_copy(update={"postprocess": found})


def least_score(recipe: Recipe) -> float:
    """The smallest score of a detection that the recipe asks for."""
    return max((getattr(how, "score", 0.0) for _, how in recipe.postprocess or ()), default=0.0)
