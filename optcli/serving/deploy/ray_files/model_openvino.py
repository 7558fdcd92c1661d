"""The model in OpenVINO, on the CPU."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

# OpenVINO reports its import home unless the package that does so cannot be found.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
import openvino  # noqa: E402

Arrays: TypeAlias = Mapping[str, np.ndarray]


class Model:
    """The model in a folder; `bundle` is the content of bundle.json."""

    def __init__(self, folder: Path, bundle: Mapping[str, Any]) -> None:
        self._core = openvino.Core()
        self._model = self._core.read_model(str(folder / bundle["file"]))
        self._bundle, self._settings = bundle, bundle["runner"]["settings"]
        self._names = [each["name"] for each in bundle["outputs"]]
        if self._settings["batch_sizes"]:
            from forms import Forms

            self.run = Forms(self._compiled, bundle).run
        else:
            self.run = self._compiled(None)

    def _compiled(self, size: int | None) -> Callable[[Arrays], Arrays]:
        model = self._model
        if size is not None:
            model = model.clone()
            shapes = {each["name"]: [size, *each["shape"][1:]] for each in self._bundle["inputs"]}
            model.reshape({name: openvino.PartialShape(shape) for name, shape in shapes.items()})
        session = self._settings["session"]
        compiled = self._core.compile_model(model, "CPU", session)
        wanted = session["INFERENCE_PRECISION_HINT"]
        if (computed := compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()) != wanted:
            raise RuntimeError(f"OpenVINO computes in {computed} on this CPU, measured was {wanted}")
        halves = {
            name
            for port in compiled.inputs
            if port.get_element_type().get_type_name() == "f16"
            for name in port.get_names()
        }

        def call(feed: Arrays) -> Arrays:
            # A request of its own for each call: several threads may be here at once.
            request = compiled.create_infer_request()
            # It reads each array where it lies, which must be writable, though nobody writes there. All
            # of them must live until it has: the tensor does not keep its array.
            copied = {
                name: np.require(array, np.float16 if name in halves else array.dtype, ["C", "W"])
                for name, array in feed.items()
            }
            for name, array in copied.items():
                request.set_tensor(name, openvino.Tensor(array, shared_memory=True))
            request.infer()
            results = (request.get_output_tensor(index).data for index in range(len(self._names)))
            return {name: data.copy() for name, data in zip(self._names, results, strict=True)}

        return call
