"""Operations and bytes of artifacts, counted once and kept in the store."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from optcli.artifact import described
from optcli.errors import OptcliError
from optcli.pipeline import keys, view
from optcli.pipeline.model_files.opening import require_trusted_code, trusting
from optcli.results import Operations
from optcli.scaffold import inspection
from optcli.scaffold.inspection import Findings, Target
from optcli.store import Store, key_of

_KIND = "operations"
_BYTES = {"fp64": 8.0, "fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "float8": 1.0, "bool": 1.0}


def count(folder: Path, store: Store) -> Operations | None:
    """What an artifact laid out in `folder` computes and moves; None where it cannot be counted.

    Compiled code cannot be read: the artifact that it was made from is counted instead, since passes
    that only convert do not change the counts. The same holds for a network in Python that the store
    did not make: looking into it would run its code.
    """
    try:
        about = described(folder)
    except (OSError, ValueError):
        return None
    ingredients = {
        "step": _KIND,
        "artifact": about["digest"],
        "made_by": [each["key"] for each in about["made_by"]],
        "code": keys.code(["pipeline/operations.py", *keys.room("scaffold/inspection")], store.digests),
    }
    key = key_of(ingredients)
    entry = store.get(_KIND, key)
    if entry is None:
        targets = list(_targets(folder, about, store))
        operations = _counted(targets)
        if not (targets and targets[0].path == folder):
            return operations  # not kept: the artifact itself was not looked into
        record = {"operations": operations.model_dump(mode="json") if operations else None}
        with store.work(_KIND, key) as work:
            entry = store.put(_KIND, key, work, record, ingredients)
    record = entry.record["operations"]
    return Operations.model_validate(record) if record else None


def _counted(targets: Sequence[Target]) -> Operations | None:
    for target in targets:
        try:
            findings = inspection.look_into(target)
        except OptcliError:
            continue
        operations = of(findings, target.name)
        if operations is not None:
            return operations
    return None


def _targets(folder: Path, about: dict[str, Any], store: Store) -> Iterator[Target]:
    """The artifact, then what it was made from, as far as the store has it."""
    steps = about["made_by"]
    laid_out = Target(steps[-1]["step"], "artifact", about["format"], folder, about)
    with suppress(OSError, ValueError, OptcliError):
        # What is kept is kept under the digest that artifact.json claims.
        if view.read(folder)[1] == about["digest"]:
            trusted = trusting(laid_out, store, trust=False)
            require_trusted_code(trusted)
            yield trusted
    for number in range(len(steps) - 2, -1, -1):
        entry = store.peek("artifact", steps[number]["key"])
        if entry is not None:
            record = {**entry.record, "made_by": steps[: number + 1]}
            name = str(steps[number]["step"])
            yield Target(name, "artifact", str(entry.record["format"]), entry.path, record)


def of(findings: Findings, counted_in: str) -> Operations | None:
    """Operations by the findings of an inspection; None where these have none."""
    counted = findings.operations
    if counted is None or not counted.macs or not counted.at:
        return None
    batch = next(iter(counted.at.values()))[0] if next(iter(counted.at.values())) else 1
    types = {each.name: each.dtype for each in findings.inputs or ()}
    input_bytes = sum(
        math.prod(shape) / batch * _width(types.get(name, "float32"))
        for name, shape in counted.at.items()
    )
    output_bytes = 0.0
    for output in findings.outputs or ():
        # Values per image: a size that is not known counts as one, the first is the batch.
        sizes = output.shape[1:] if output.shape else ()
        values = math.prod(size for size in sizes if isinstance(size, int))
        output_bytes += values * _width(output.dtype)
    weights = sum(many * _width(kind) for kind, many in findings.parameters_by_type.items())
    return Operations(
        per_image=round(counted.flops / batch),
        weight_bytes=round(weights),
        input_output_bytes_per_image=round(input_bytes + output_bytes),
        counted_in=counted_in,
    )


def _width(kind: str) -> float:
    """Bytes of one value of a type: `fp32`, `float32`, `int8`, `uint4`."""
    if kind in _BYTES:
        return _BYTES[kind]
    digits = "".join(sign for sign in kind if sign.isdigit())
    return int(digits) / 8 if digits and len(digits) < 3 else 4.0
