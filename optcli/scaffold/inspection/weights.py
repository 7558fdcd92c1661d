"""Into a bare file of weights: how many values of which type; there is no network to look into."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optcli.models.formats import torch_weights
from optcli.scaffold.inspection import _torch_calls as calls
from optcli.settings import TensorSpec


def look(path: Path, inputs: Sequence[TensorSpec]) -> dict[str, Any]:
    """Look into a file of tensors. Raises `TrustError` for a pickle that could run code."""
    groups = torch_weights.read_checkpoint(path).groups
    key, state = max(groups.items(), key=lambda each: calls.parameters(each[1])["parameters"])
    several = f"; the file has several: {', '.join(groups)}" if len(groups) > 1 else ""
    counts = calls.parameters(state)
    by_type = counts["parameters_by_type"]
    return {
        **counts,
        "precision": "+".join(sorted(by_type)) or None,
        "facts": {"tensors": len(state), **({"key": key} if key else {})},
        "notes": [
            f"these are weights without a network: name them as model.weights in a recipe{several}"
        ],
    }
