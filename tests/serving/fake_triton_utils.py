"""What Triton's Python backend gives its models, as far as ours use it, and a way to call them."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np


@dataclass
class Tensor:
    name_: str
    array: np.ndarray

    def name(self) -> str:
        return self.name_

    def as_numpy(self) -> np.ndarray:
        return self.array


@dataclass
class TritonError:
    INTERNAL = 1
    INVALID_ARG = 3

    text: str
    code: int


@dataclass
class InferenceResponse:
    output_tensors: list[Tensor] = field(default_factory=list)
    error: TritonError | None = None


def get_input_tensor_by_name(request: dict[str, np.ndarray], name: str) -> Tensor | None:
    return Tensor(name, request[name]) if name in request else None


def model(folder: Path, config: Any) -> Any:
    """The model.py of a folder's version, initialized with its configuration as Triton gives it."""
    from google.protobuf import json_format

    module = ModuleType("triton_python_backend_utils")
    vars(module).update(
        Tensor=Tensor,
        TritonError=TritonError,
        InferenceResponse=InferenceResponse,
        get_input_tensor_by_name=get_input_tensor_by_name,
    )
    place = list(sys.path)
    sys.modules["triton_python_backend_utils"] = module
    try:
        name = f"model_of_{folder.name.replace('-', '_')}"
        spec = importlib.util.spec_from_file_location(name, folder / "1" / "model.py")
        assert spec is not None
        assert spec.loader is not None
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
    finally:
        # Each model has its own process in Triton, and so its own modules.
        for beside in ("triton_python_backend_utils", "images", "postprocess"):
            sys.modules.pop(beside, None)
        sys.path[:] = place
    one = loaded.TritonPythonModel()
    text = json_format.MessageToJson(config, preserving_proto_field_name=True)
    one.initialize({"model_config": text})
    return one
