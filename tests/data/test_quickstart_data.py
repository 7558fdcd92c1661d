"""The quickstart's data and weights are what its README says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from optcli.data import DataSettings, disjoint
from optcli.data import open as open_data
from optcli.sample import SampleSet, batches
from optcli.settings import TensorSpec

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture
def roles() -> dict[str, SampleSet]:
    from ruamel.yaml import YAML

    recipe: dict[str, Any] = YAML(typ="safe").load(RECIPES / "quickstart.yaml")
    inputs = [TensorSpec.model_validate(each) for each in recipe["inputs"]]
    return {
        role: open_data(DataSettings.model_validate(settings), RECIPES, inputs)
        for role, settings in recipe["data"].items()
    }


def test_the_roles_are_disjoint(roles: dict[str, SampleSet]) -> None:
    assert {role: len(samples) for role, samples in roles.items()} == {
        "calibration": 256,
        "evaluation": 500,
        "training": 837,
        "validation": 200,
    }
    disjoint(roles)


@pytest.mark.slow
def test_the_weights_classify_over_98_percent_of_the_evaluation(
    roles: dict[str, SampleSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from safetensors.torch import load_file

    monkeypatch.syspath_prepend(RECIPES / "quickstart")
    monkeypatch.delitem(sys.modules, "model", raising=False)
    from model import DigitsNet

    network = DigitsNet().eval()
    network.load_state_dict(load_file(RECIPES / "quickstart" / "weights.safetensors"))
    right = 0
    with torch.inference_mode():
        for batch in batches(roles["evaluation"], 100):
            logits = network(torch.from_numpy(batch.inputs["image"]))
            right += int((logits.argmax(1) == torch.tensor(batch.targets)).sum())
    monkeypatch.delitem(sys.modules, "model")
    assert right / 500 > 0.98
