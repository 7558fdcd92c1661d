"""What a bundle says of itself and of its model to tritonclient: pages that never change."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optcli.serving.bundle import Bundle, BundleTensor

FILE = "pages.json"
_EXTENSIONS = ["binary_tensor_data", "model_configuration", "statistics", "model_repository"]


def write(folder: Path, made: Bundle) -> None:
    """Write the pages by their path. Raises OSError."""
    model = f"/v2/models/{made.model}"
    pages = {
        "/v2": {"name": "ray-serve", "version": "1", "extensions": _EXTENSIONS},
        "/v2/repository/index": [{"name": made.model, "version": "1", "state": "READY", "reason": ""}],
        model: _metadata(made),
        f"{model}/config": _config(made),
    }
    (folder / FILE).write_text(json.dumps(pages, indent=2) + "\n", encoding="utf-8")


def _metadata(made: Bundle) -> dict[str, Any]:
    """Names, types and shapes, and which output holds scores of classes."""
    outputs = [
        {**each, "parameters": {"class_scores": each["name"] == made.class_scores}}
        for each in _described(made.outputs)
    ]
    about = {"name": made.model, "versions": ["1"], "platform": made.platform}
    return {**about, "inputs": _described(made.inputs), "outputs": outputs}


def _described(tensors: Sequence[BundleTensor]) -> list[dict[str, Any]]:
    return [
        {"name": each.name, "datatype": each.datatype, "shape": list(each.shape)} for each in tensors
    ]


def _config(made: Bundle) -> dict[str, Any]:
    """The same as Triton's clients ask for it: shapes without the batch."""
    first = 1 if made.batched else 0
    inputs, outputs = (
        [
            {
                "name": each.name,
                "data_type": f"TYPE_{each.datatype}",
                "dims": list(each.shape[first:]),
            }
            for each in tensors
        ]
        for tensors in (made.inputs, made.outputs)
    )
    most = min((each.most[0] for each in made.inputs), default=0) if made.batched else 0
    about = {"name": made.model, "platform": made.platform, "backend": "", "max_batch_size": most}
    return {**about, "input": inputs, "output": outputs}
