"""The model as TorchScript, in PyTorch on the CPU."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_tensors import arrays_of, prepare_process, tensor_of


class Model:
    """The model in a folder; `bundle` is the content of bundle.json."""

    def __init__(self, folder: Path, bundle: Mapping[str, Any]) -> None:
        prepare_process(bundle["threads"])
        settings = bundle["runner"]["settings"]
        for package in settings["imports"]:
            importlib.import_module(package)
        model = torch.jit.load(str(folder / bundle["file"]), map_location="cpu").eval()
        optimized = settings["optimize_for_inference"]
        self._model = torch.jit.optimize_for_inference(model) if optimized else model
        self._positional, self._keyword = settings["positional"], settings["keyword"]
        self._names = [each["name"] for each in bundle["outputs"]]

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by name."""
        positional = [tensor_of(feed[name]) for name in self._positional]
        keyword = {name: tensor_of(feed[name]) for name in self._keyword}
        with torch.no_grad():
            return arrays_of(self._model(*positional, **keyword), self._names)
