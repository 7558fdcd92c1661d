"""Send an image to the server: `python send_image.py MODEL IMAGE [HOST:PORT]`, by tritonclient."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from tritonclient import http


def main(model: str, image: str, url: str = "localhost:8000") -> None:
    """Print the answer."""
    client = http.InferenceServerClient(url)
    declared = client.get_model_metadata(model)["inputs"][0]
    shape = [1 if size == -1 else size for size in declared["shape"]]
    tensor = http.InferInput(declared["name"], shape, "BYTES")
    tensor.set_data_from_numpy(np.array([Path(image).read_bytes()], np.object_).reshape(shape))
    answer = client.infer(model, [tensor]).as_numpy("answer")
    print(answer.ravel()[0].decode())


if __name__ == "__main__":
    main(*sys.argv[1:])
