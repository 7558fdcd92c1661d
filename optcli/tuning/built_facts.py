"""What was built for a trial says of how it was made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optcli.artifact import Artifact
from optcli.pipeline.making import Made
from optcli.pipeline.plan import Step
from optcli.tuning.layers import layers_of
from optcli.tuning.rules import CONVOLUTIONAL, TRANSFORMER
from optcli.tuning.trial_runner import planned

_ATTENTION = {"ScaledDotProductAttention", "Softmax", "SoftMax", "Attention"}


def early_end(made: Made, name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Why a training of a trial ended early, and after what share of its `train_s`."""
    facts: dict[str, Any] = {}
    steps = planned(made, name).steps
    trainings = [step for step in steps if step.name == "finetune"]
    if parameters.get("train_s"):
        # Those before are of what was `learned`. `more_s` is the last, where there is one.

        step = trainings[-2 if parameters.get("more_s") else -1]
        stopping = _facts_of(made, step)["finetuning"].get("early_stopping", {})
        if stopping.get("why"):
            facts = {"ended_early": stopping["why"], "trained_share": stopping["share"]}
    for step in steps:
        if step.name == "quantize_aware":
            stopping = _facts_of(made, step)["quantization_aware_training"].get("early_stopping", {})
            facts |= {"ended_early": stopping["why"]} if stopping.get("why") else {}
    return facts


def blocks_gone(made: Made, name: str) -> dict[str, Any]:
    """How many blocks of a network were removed, and of how many."""
    step = next(step for step in planned(made, name).steps if step.name == "prune")
    pruning = _facts_of(made, step)["pruning"]
    return {"blocks_removed": len(pruning["blocks_removed"]), "blocks_found": pruning["blocks_found"]}


def _facts_of(made: Made, step: Step) -> dict[str, Any]:
    return dict(made.done[step.key].artifact().facts)


def family_of(built: Artifact) -> str | None:
    """Whether a network is a transformer: it has attention, several times over."""
    kinds = [layer.kind for layer in layers_of(built, built)]
    if not kinds:
        return None
    return TRANSFORMER if sum(kind in _ATTENTION for kind in kinds) > 1 else CONVOLUTIONAL
