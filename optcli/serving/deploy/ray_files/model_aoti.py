"""The model as AOTInductor package, in PyTorch on the CPU. It runs the native code of the package."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch_tensors import arrays_of, prepare_process, tensor_of


class Model:
    """The model in a folder; `bundle` is the content of bundle.json.

    A package holds a model for any batch size, models of single sizes (`fixed`), or both. A batch goes
    to its own model, filled up to the next one from `padded_from` rows on, or to that for any size.
    """

    def __init__(self, folder: Path, bundle: Mapping[str, Any]) -> None:
        prepare_process(bundle["threads"])
        path, self._routes = str(folder / bundle["file"]), bundle["runner"]["settings"]["routes"]
        names = [f"batch_{size}" for size in self._routes["fixed"]]
        if self._routes["any_size"]:
            names.append("model")
        self._models = {name: _opened(path, name) for name in names}
        specs = {name: model.get_call_spec()[1] for name, model in self._models.items()}
        self._outputs = {name: pytree.treespec_loads(spec) for name, spec in specs.items()}
        self._inputs = [each["name"] for each in bundle["inputs"]]
        self._names = [each["name"] for each in bundle["outputs"]]

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by name."""
        fixed, any_size = self._routes["fixed"], self._routes["any_size"]
        rows = len(feed[self._inputs[self._routes["input"]]])
        if rows in fixed:
            return self._call(f"batch_{rows}", feed)
        larger = next((size for size in fixed if size > rows), None)
        if larger is not None and self._routes["padded_from"].get(str(larger), larger) <= rows:
            outputs = self._call(f"batch_{larger}", {n: _filled(a, larger) for n, a in feed.items()})
            return {name: array[:rows] for name, array in outputs.items()}
        if larger is None and fixed and (self._routes["pieces"] or not any_size):
            largest = fixed[-1]
            head = self._call(f"batch_{largest}", {n: a[:largest] for n, a in feed.items()})
            tail = self.run({n: a[largest:] for n, a in feed.items()})
            return {name: np.concatenate([head[name], tail[name]]) for name in head}
        return self._call("model", feed)

    def _call(self, name: str, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        with torch.inference_mode():
            tensors = [tensor_of(feed[each]) for each in self._inputs]
            outputs = self._models[name].boxed_run(tensors)
            return arrays_of(pytree.tree_unflatten(outputs, self._outputs[name]), self._names)


def _opened(path: str, name: str) -> Any:
    """What torch._inductor.aoti_load_package wraps, without an import of torch's compiler."""
    loader = torch._C._aoti.AOTIModelPackageLoader
    try:
        return loader(path, name, False, 1, -1)
    except RuntimeError:  # an operator that the compiler registers, perhaps
        importlib.import_module("torch._inductor")
        return loader(path, name, False, 1, -1)


def _filled(array: np.ndarray, size: int) -> np.ndarray:
    """The rows, and the last one repeated until there are `size`."""
    return np.concatenate([array, np.repeat(array[-1:], size - len(array), axis=0)])
