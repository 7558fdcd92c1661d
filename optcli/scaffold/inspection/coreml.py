"""Into Core ML models: inputs, outputs, operations, how weights are written, and who can run it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optcli.models.formats import coreml as coreml_format
from optcli.scaffold.inspection.findings import operators
from optcli.settings import TensorSpec

# What holds a value, and what restores weights that are written in a smaller form.
_CONSTANTS = ("const", "constexpr_")


def look(path: Path, inputs: Sequence[TensorSpec]) -> dict[str, Any]:
    """Look into a `.mlpackage`, a `.mlmodel` file, or a folder with a package. Raises `InputError`."""
    package = path / coreml_format.FILE
    model = coreml_format.read(package if package.is_dir() else path)
    taken, given = coreml_format.tensors(model)
    counts: Counter[tuple[str, str]] = Counter()
    restored: Counter[str] = Counter()
    for operation in coreml_format.operations(model):
        if operation.type.startswith("constexpr_"):
            restored[operation.type] += 1
        if not operation.type.startswith(_CONSTANTS):
            kind = coreml_format.element_type(operation.outputs[0].type.tensorType)
            counts[operation.type, kind] += 1
    weights: Counter[str] = Counter()
    for value in coreml_format.weights(model):
        tensor = value.type.tensorType
        sizes = [each.constant.size for each in tensor.dimensions]
        weights[coreml_format.element_type(tensor)] += math.prod(sizes)
    notes = [f"{coreml_format.oldest_system(model)} and later run it; it was not run here"]
    notes += [f"{count} arrays of weights are written as {name}" for name, count in restored.items()]
    kind = str(model.get_spec().WhichOneof("Type"))
    if kind != "mlProgram":
        notes.append(f"it is an older kind of model, {kind}: its layers are not listed")
    return {
        "inputs": [_record(each) for each in taken],
        "outputs": [_record(each) for each in given],
        "operators": operators(counts),
        "parameters": sum(weights.values()) or None,
        "parameters_by_type": dict(weights),
        "notes": notes,
    }


def _record(tensor: coreml_format.FeatureDescription) -> dict[str, Any]:
    return {"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.sizes)}
