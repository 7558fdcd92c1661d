"""Which operators add most error: the layer-by-layer comparison, as a list of names."""

from __future__ import annotations

from collections.abc import Callable

from optcli.accuracy.layers import LayersRequest, compare
from optcli.artifact import Artifact
from optcli.environment import usable_cores
from optcli.errors import OptcliError
from optcli.observer import Observer
from optcli.recipe import Recipe

Ranking = Callable[[Recipe, Artifact, Artifact, Observer], list[str]]
STEP = "repair › layers"


def by_own_error(
    recipe: Recipe,
    parent: Artifact,
    quantized: Artifact,
    observer: Observer,
    *,
    timeout_s: float = 300.0,
) -> list[str]:
    """Names of operators, the one that adds most error by itself first; empty where that is not known.

    On calibration samples where there are some, so that the evaluation samples do not choose. Where the
    two cannot be compared the observer hears why: structural groups can be tried all the same.
    """
    data = recipe.data.get("calibration", recipe.data["evaluation"])
    observer.started(STEP)
    try:
        threads = recipe.latency.threads or usable_cores()
        request = LayersRequest(parent, quantized, recipe.inputs, data, recipe.folder, threads=threads)
        layers = compare(request, timeout_s=timeout_s)
    except OptcliError as error:
        observer.warned(STEP, error.message)
        return []
    if not layers.rows:
        observer.warned(STEP, layers.reason or "no layer could be compared")
    return list(layers.worst_nodes())
