"""For Triton's Python backend: images as bytes in, the model's inputs out, as `images.json` says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as triton

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from images import FILE, Images  # noqa: E402  (it lies beside this file)


class TritonPythonModel:
    """What Triton calls. A request holds one image a row, and one is wrong or none."""

    def initialize(self, args: dict[str, str]) -> None:
        """Called once, before the first request."""
        self._images = Images.from_file(HERE / FILE)

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response for each request, in their order."""
        return [self._response(request) for request in requests]

    def _response(self, request: Any) -> Any:
        bodies = triton.get_input_tensor_by_name(request, "image").as_numpy().ravel()
        try:
            rows = [self._images.prepared(bytes(body)) for body in bodies]
            arrays, placements = zip(*rows, strict=True)
            if len({array.shape for array in arrays}) > 1:
                raise ValueError("the images of one request become inputs of different sizes")
        except ValueError as error:
            return triton.InferenceResponse(
                error=triton.TritonError(str(error), triton.TritonError.INVALID_ARG)
            )
        feed = self._images.feed(arrays, placements)
        places = [
            [
                *place["original_size"],
                *place["scale"],
                *place["padding"],
                *(place.get("network_size") or self._images.size_of(row)),
            ]
            for place, row in zip(placements, arrays, strict=True)
        ]
        return triton.InferenceResponse(
            output_tensors=[
                *(triton.Tensor(name, array) for name, array in feed.items()),
                triton.Tensor("placement", np.array(places, np.float64)),
            ]
        )
