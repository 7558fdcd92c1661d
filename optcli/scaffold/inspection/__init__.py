"""Looking into models: inputs, outputs, operators by precision, parameters, operations, and size.

One file per format (`inspection/onnx.py` looks into ONNX). The looking is done in a worker: a model is
input from elsewhere, and its library is heavy.
"""

from __future__ import annotations

from pathlib import Path

from optcli.scaffold.inspection.findings import (
    Findings,
    MultiplyAccumulates,
    Operator,
    Tensor,
    document,
)
from optcli.scaffold.inspection.targets import Target, resolve
from optcli.workers import run

_TIMEOUT_S = 600.0


def inspect(target: str, artifacts: Path) -> Findings:
    """What a model holds: an artifact's folder, a model file, a recipe, or a variant of the last build.

    `artifacts` is where builds lay out their variants. A recipe's model is made as its source gives
    it. Raises `UsageError` where there is no such thing, `InputError` where it is no sound model,
    `TrustError` where reading it could run code, `MissingError` where a library is not here.
    """
    return look_into(resolve(target, artifacts))


def look_into(target: Target) -> Findings:
    """What a resolved target holds, such as an artifact in the store. Raises as `inspect` does."""
    return run(
        "optcli.scaffold.inspection.looking:look",
        target,
        Findings,
        timeout_s=_TIMEOUT_S,
        confined=() if target.only_read else None,
        reads=str(target.path) if target.kind == "recipe" else target.path,
    )
