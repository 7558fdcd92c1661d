"""Into ONNX Runtime's own format: what its session tells; the operators by type alone."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optcli.formats import ort as ort_format
from optcli.settings import TensorSpec

_DTYPES = {"float": "float32", "double": "float64"}


def look(path: Path, inputs: Sequence[TensorSpec]) -> dict[str, Any]:
    """Look into a file, or into the `model.ort` of a folder. Raises `InputError`."""
    if path.is_file():
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(path, Path(folder) / ort_format.FILE)
            return look(Path(folder), inputs)
    session = ort_format.open(path)
    kinds = ", ".join(sorted(ort_format.operators(path)))
    return {
        "inputs": [_tensor(each) for each in session.get_inputs()],
        "outputs": [_tensor(each) for each in session.get_outputs()],
        "precision": "int8" if ort_format.is_quantized(path) else None,
        "notes": [f"the format gives only the types of its operators: {kinds}"],
    }


def _tensor(value: Any) -> dict[str, Any]:
    kind = value.type.removeprefix("tensor(").removesuffix(")")
    return {"name": value.name, "dtype": _DTYPES.get(kind, kind), "shape": value.shape}
