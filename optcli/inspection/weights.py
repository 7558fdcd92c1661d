"""Into a bare file of weights: how many values of which type; there is no network to look into."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optcli.formats import torch_weights
from optcli.inspection import _torch_calls as calls
from optcli.settings import TensorSpec


def look(path: Path, inputs: Sequence[TensorSpec]) -> dict[str, Any]:
    """Look into a file of tensors. Raises `TrustError` for a pickle that could run code."""
    state = torch_weights.read(path)
    counts = calls.parameters(state)
    by_type = counts["parameters_by_type"]
    return {
        **counts,
        "precision": "+".join(sorted(by_type)) or None,
        "facts": {"tensors": len(state)},
        "notes": ["these are weights without a network: name them as model.weights in a recipe"],
    }
