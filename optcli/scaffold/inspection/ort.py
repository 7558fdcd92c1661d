"""Into ONNX Runtime's own format: what its session tells; the operators by type alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optcli.models.formats import ort as ort_format
from optcli.scaffold.inspection.findings import as_folder
from optcli.settings import TensorSpec

_DTYPES = {"float": "float32", "double": "float64"}


def look(path: Path, inputs: Sequence[TensorSpec]) -> dict[str, Any]:
    """Look into a file, or into the `model.ort` of a folder. Raises `InputError`."""
    with as_folder(path, {ort_format.FILE: path}) as folder:
        session = ort_format.open(folder)
        kinds = ", ".join(sorted(ort_format.operators(folder)))
        quantized = ort_format.is_quantized(folder)
    return {
        "inputs": [_tensor(each) for each in session.get_inputs()],
        "outputs": [_tensor(each) for each in session.get_outputs()],
        "precision": "int8" if quantized else None,
        "notes": [f"the format gives only the types of its operators: {kinds}"],
    }


def _tensor(value: Any) -> dict[str, Any]:
    kind = value.type.removeprefix("tensor(").removesuffix(")")
    return {"name": value.name, "dtype": _DTYPES.get(kind, kind), "shape": value.shape}
