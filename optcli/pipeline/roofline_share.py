"""The roofline of this machine in the store, and how near to it the variants of a report come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from optcli import environment
from optcli.errors import MissingError, UsageError
from optcli.measure import roofline
from optcli.measure.roofline import Roofline
from optcli.observer import Observer
from optcli.pipeline import keys, measurement_lock
from optcli.pipeline.operations import count
from optcli.results import Latency, Operations, Report, Share, VariantReport, flags
from optcli.store import Store, key_of

_KIND = "roofline"
# What measures the machine; one module for each library, found by its name.
_LIBRARIES = ("__init__", "torch", "onnxruntime", "openvino")
_MEASURING = [f"measure/roofline/{name}.py" for name in _LIBRARIES]


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
    with measurement_lock.acquired(_KIND, observer):
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
    operations = count(folder / variant.artifact.path, store)
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
