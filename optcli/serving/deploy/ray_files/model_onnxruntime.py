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
        if self._settings["batch_sizes"]:
            from forms import Forms

            self.run = Forms(self._opened, bundle).run
        else:
            self.run = self._opened(None)

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
