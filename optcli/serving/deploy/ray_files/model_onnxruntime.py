"""The model in ONNX Runtime, on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnxruntime

Arrays: TypeAlias = Mapping[str, np.ndarray]


class Model:
    """The model in a folder; `bundle` is the content of bundle.json."""

    def __init__(self, folder: Path, bundle: Mapping[str, Any]) -> None:
        self._path = str(folder / bundle["file"])
        self._settings = bundle["runner"]["settings"]
        self._names = [each["name"] for each in bundle["outputs"]]
        self.run = formed(self._opened, bundle)

    def _opened(self, size: int | None) -> Callable[[Arrays], Arrays]:
        options, session = onnxruntime.SessionOptions(), self._settings["session"]
        options.graph_optimization_level = getattr(
            onnxruntime.GraphOptimizationLevel, session["graph_optimization_level"]
        )
        for name, value in session["attributes"].items():
            setattr(options, name, value)
        for name, value in session["entries"].items():
            options.add_session_config_entry(name, value)
        for name in self._settings["batch_names"] if size is not None else ():
            options.add_free_dimension_override_by_name(name, size)
        providers = [("CPUExecutionProvider", session["provider_options"])]
        opened = onnxruntime.InferenceSession(self._path, options, providers=providers)
        halves = {each.name for each in opened.get_inputs() if each.type == "tensor(float16)"}

        def call(feed: Arrays) -> Arrays:
            given = {n: a.astype(np.float16) if n in halves else a for n, a in feed.items()}
            return dict(zip(self._names, opened.run(self._names, given), strict=True))

        return call


def formed(
    make: Callable[[int | None], Callable[[Arrays], Arrays]], bundle: Mapping[str, Any]
) -> Callable[[Arrays], Arrays]:
    """The model for any batch size, or compiled for each of those that were measured."""
    settings = bundle["runner"]["settings"]
    if not settings["batch_sizes"]:
        return make(None)
    from forms import Forms

    return Forms(
        make,
        settings["batch_sizes"],
        bundle["inputs"][0]["name"],
        padded_from=settings["padded_from"],
        any_size=settings["any_size"],
    ).run
