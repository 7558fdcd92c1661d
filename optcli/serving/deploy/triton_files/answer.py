"""For Triton's Python backend: the model's outputs in, classes or boxes as JSON out.

`postprocess.json` says how.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as triton

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from postprocess import FILE, Postprocess  # noqa: E402  (it lies beside this file)


class TritonPythonModel:
    """What Triton calls. A request holds the outputs of one image a row."""

    def initialize(self, args: dict[str, str]) -> None:
        """Called once, before the first request."""
        config = json.loads(args["model_config"])
        self._outputs = [each["name"] for each in config["input"] if each["name"] != "placement"]
        self._postprocess = Postprocess.from_file(HERE / FILE)

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response for each request, in their order."""
        return [self._response(request) for request in requests]

    def _response(self, request: Any) -> Any:
        outputs = {
            name: triton.get_input_tensor_by_name(request, name).as_numpy() for name in self._outputs
        }
        places = triton.get_input_tensor_by_name(request, "placement").as_numpy()
        try:
            answers = [
                self._postprocess.answer(
                    outputs,
                    {
                        "original_size": (int(place[0]), int(place[1])),
                        "scale": (place[2], place[3]),
                        "padding": (int(place[4]), int(place[5])),
                        "network_size": (int(place[6]), int(place[7])),
                    },
                    image=image,
                )
                for image, place in enumerate(places)
            ]
        except ValueError as error:
            return triton.InferenceResponse(
                error=triton.TritonError(str(error), triton.TritonError.INTERNAL)
            )
        texts = np.array([json.dumps(answer).encode() for answer in answers], np.object_)
        return triton.InferenceResponse(output_tensors=[triton.Tensor("answer", texts[:, None])])
