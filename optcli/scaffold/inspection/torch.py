"""Into networks of PyTorch: one call shows the operators, torch's own counter the operations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optcli.models.formats import torch as torch_format
from optcli.models.formats import torch_modules
from optcli.models.formats.torch_calls import arguments, flatten_outputs
from optcli.scaffold.inspection import _torch_calls as calls
from optcli.settings import TensorSpec


def look(path: Path, inputs: Sequence[TensorSpec]) -> dict[str, Any]:
    """Look into a torch artifact: its network is built again and called once at its smallest batch."""
    description = torch_format.read(path)
    inputs = inputs or description.inputs
    model = torch_format.open(path)
    feed = calls.example(inputs)
    positional, keyword = arguments(model, inputs).split(feed)
    counted, result = calls.counted(lambda: model(*positional, **keyword), feed)
    return {
        "precision": torch_format.precision(model),
        "inputs": [{"name": s.name, "dtype": s.dtype, "shape": s.shape} for s in inputs],
        "outputs": calls.tensors(flatten_outputs(result), inputs, feed),
        "operators_are": "calls of PyTorch's operators",
        **calls.parameters(
            dict(torch_modules.named_parameters(model)) or dict(torch_modules.state(model))
        ),
        **counted,
    }
