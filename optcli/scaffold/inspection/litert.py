"""Into LiteRT models: inputs, outputs, operators, and which of them XNNPACK takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optcli.errors import counted
from optcli.models.formats import litert as litert_format
from optcli.scaffold.inspection.findings import as_folder, operators
from optcli.settings import TensorSpec


def look(path: Path, inputs: Sequence[TensorSpec]) -> dict[str, Any]:
    """Look into a `.tflite`, or into a folder with one. Raises `InputError`."""
    with as_folder(path, {litert_format.FILE: path}) as folder:
        interpreter = litert_format.open(folder)
        taken, given = litert_format.tensors(interpreter)
        parts, outside = litert_format.outside(interpreter)
        counts = litert_format.operator_counts(folder / litert_format.FILE)
    left = ", ".join(f"{count} {name}" for name, count in sorted(Counter(outside).items()))
    notes = [f"XNNPACK computes {counted(parts, 'part')}; outside of it: {left or 'nothing'}"]
    notes += [
        f"{each.name} is {each.dtype} with a scale in the file; values are converted"
        for each in (*taken, *given)
        if each.scale
    ]
    return {
        "inputs": [_record(each) for each in taken],
        "outputs": [_record(each) for each in given],
        "operators": operators(counts),
        "precision": litert_format.precision(counts),
        "notes": notes,
    }


def _record(tensor: litert_format.LitertTensor) -> dict[str, Any]:
    """As the runner takes it: it turns values into integers where the file has these with a scale."""
    dtype = "float32" if tensor.scale else tensor.dtype
    return {"name": tensor.name, "dtype": dtype, "shape": list(tensor.sizes)}
