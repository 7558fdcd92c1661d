"""The model in ONNX Runtime, on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from forms import Arrays, Forms

_LEVELS = {
    "disabled": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}


class Model:
    """The model in a folder; `bundle` is the content of bundle.json."""

    def __init__(self, folder: Path, bundle: Mapping[str, Any]) -> None:
        self._path = str(folder / bundle["file"])
        self._bundle, self._settings = bundle, bundle["runner"]["settings"]
        self._names = [each["name"] for each in bundle["outputs"]]
        self.run = Forms(
            self._opened,
            self._settings["batch_sizes"],
            bundle["inputs"][0]["name"],
            padded_from=self._settings["padded_from"],
            any_size=self._settings["any_size"],
        ).run

    def _opened(self, size: int | None) -> Callable[[Arrays], Arrays]:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._bundle["threads"]
        options.inter_op_num_threads = 1
        options.graph_optimization_level = _LEVELS[self._settings["optimization_level"]]
        # Threads do not spin between calls: other replicas share the cores.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        options.log_severity_level = 3
        for name in self._settings["batch_names"] if size is not None else ():
            options.add_free_dimension_override_by_name(name, size)
        session = onnxruntime.InferenceSession(self._path, options, providers=["CPUExecutionProvider"])
        halves = {each.name for each in session.get_inputs() if each.type == "tensor(float16)"}

        def call(feed: Arrays) -> Arrays:
            given = {n: a.astype(np.float16) if n in halves else a for n, a in feed.items()}
            return dict(zip(self._names, session.run(self._names, given), strict=True))

        return call
