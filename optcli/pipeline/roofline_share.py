"""How near the variants of a report come to the roofline of this machine: operations and peaks.

Both are worked out once and stay in the store.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from optcli import environment
from optcli.artifact import described
from optcli.errors import MissingError, OptcliError, UsageError
from optcli.measure import roofline
from optcli.measure.roofline import Roofline
from optcli.observer import Observer
from optcli.pipeline import keys, places, view
from optcli.pipeline.model_files.opening import require_trusted_code, trusting
from optcli.results import Latency, Operations, Report, Share, VariantReport, flags
from optcli.scaffold import inspection
from optcli.scaffold.inspection import Findings, Target
from optcli.store import Store, key_of

_OPERATIONS = "operations"
_BYTES = {"fp64": 8.0, "fp32": 4.0, "fp16": 2.0, "bf16": 2.0, "float8": 1.0, "bool": 1.0}
_KIND = "roofline"
# What measures the machine; one module for each library, found by its name.
_LIBRARIES = ("__init__", "torch", "onnxruntime", "openvino")
_MEASURING = [f"measure/roofline/{name}.py" for name in _LIBRARIES]


def count_operations(folder: Path, store: Store) -> Operations | None:
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
        "step": _OPERATIONS,
        "artifact": about["digest"],
        "made_by": [each["key"] for each in about["made_by"]],
        "code": keys.code(
            ["pipeline/roofline_share.py", *keys.room("scaffold/inspection")], store.digests
        ),
    }
    key = key_of(ingredients)
    entry = store.get(_OPERATIONS, key)
    if entry is None:
        targets = list(_targets(folder, about, store))
        operations = _counted(targets)
        if not (targets and targets[0].path == folder):
            return operations  # not kept: the artifact itself was not looked into
        record = {"operations": operations.model_dump(mode="json") if operations else None}
        with store.work(_OPERATIONS, key) as work:
            entry = store.put(_OPERATIONS, key, work, record, ingredients)
    record = entry.record["operations"]
    return Operations.model_validate(record) if record else None


def _counted(targets: Sequence[Target]) -> Operations | None:
    for target in targets:
        try:
            findings = inspection.look_into(target)
        except OptcliError:
            continue
        operations = operations_of(findings, target.name)
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


def operations_of(findings: Findings, counted_in: str) -> Operations | None:
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


def measured(store: Store, observer: Observer, *, remeasure: bool = False) -> Roofline:
    """The roofline of this machine with these libraries, from the store or measured now.

    Raises `RunnerError` where no library can be measured.
    """
    if remeasure:
        store.discard(_KIND, key_of(_ingredients(store)))
    machine = stored(store)
    if machine is not None:
        observer.cached(_KIND)
        return machine
    ingredients = _ingredients(store)
    key = key_of(ingredients)
    with places.holding_measurement_lock(_KIND, observer):
        machine = roofline.measure(store.log_folder(key), observer)
    with store.work(_KIND, key) as work:
        record = machine.model_dump(mode="json", by_alias=True)
        store.put(_KIND, key, work, record, ingredients)
    return machine


def stored(store: Store) -> Roofline | None:
    """The roofline of this machine with these libraries; None where it was not measured yet."""
    entry = store.get(_KIND, key_of(_ingredients(store)))
    return None if entry is None else Roofline.model_validate(entry.record)


def near(report: Report, folder: Path, store: Store) -> Report:
    """The report with `operations` of every variant, and how near each came to this machine's limit.

    `folder` is where its artifacts are laid out. Raises `MissingError` where the roofline was not
    measured yet, `UsageError` where the report is of another machine.
    """
    machine = stored(store)
    if machine is None:
        raise MissingError(
            "this machine's peaks were not measured yet", place=_KIND, hint="run `optcli roofline`"
        )
    for what in ("cpu", "cores"):
        here, there = machine.environment.get(what), report.environment.get(what)
        if here != there:
            raise UsageError(
                f"the report is of a machine with another {what}, not comparable with this one's peaks",
                place=str(folder),
                hint="run `optcli roofline` and `optcli compare --roofline` on that machine",
            )
    variants = {
        name: variant.model_copy(update={"operations": _operations(variant, folder, store, machine)})
        for name, variant in report.variants.items()
    }
    return report.model_copy(update={"variants": variants})


def _operations(
    variant: VariantReport, folder: Path, store: Store, machine: Roofline
) -> Operations | None:
    if variant.artifact is None or not (folder / variant.artifact.path / "artifact.json").is_file():
        return None
    operations = count_operations(folder / variant.artifact.path, store)
    runner = variant.runner or {}
    on_gpu = "cuda" in str(runner.get("provider", "")).lower()
    if operations is None or on_gpu:  # the CPU's peaks do not apply there
        return operations
    precision = str(runner.get("precision") or variant.artifact.precision)
    shares = [share(operations, row, precision, machine) for row in variant.on_host]
    return operations.model_copy(update={"shares": tuple(filter(None, shares))})


def share(work: Operations, row: Latency, precision: str, machine: Roofline) -> Share | None:
    """How near one row came to the limit, with p50's interval; None where the limit is not known."""
    operations = work.per_image * row.batch_size
    moved_bytes = work.moved_bytes(row.batch_size)
    limit = roofline.limit(machine, precision, row.threads, operations, moved_bytes)
    if limit is None:
        return None
    achieved = operations / row.p50_ms.value * 1e3

    def of_limit(ms: float | None) -> float | None:
        return operations / ms * 1e3 / limit.per_s if ms and row.fit else None

    doubts = [flags.over_the_peak(achieved / limit.per_s)] if achieved > limit.per_s else []
    doubts += [] if row.fit else [flags.disturbed()]
    return Share(
        batch_size=row.batch_size,
        precision=limit.precision,
        bound=limit.bound,
        achieved_per_s=achieved,
        limit_per_s=limit.per_s,
        share=achieved / limit.per_s,
        # The slowest p50 of the interval gives the lowest share.
        low=of_limit(row.p50_ms.high),
        high=of_limit(row.p50_ms.low),
        flags=tuple(doubts),
    )


def _ingredients(store: Store) -> dict[str, Any]:
    return {
        "step": _KIND,
        "environment": environment.describe(roofline.PACKAGES),
        "machine": environment.machine(),
        "code": keys.code(_MEASURING, store.digests),
    }
