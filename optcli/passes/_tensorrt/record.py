"""What is kept of a build: the sidecar, facts for the report, timings for the next one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from optcli.models.engines import driver, inspection, sidecar
from optcli.models.engines.job import EngineJob as Build
from optcli.passes import Job
from optcli.passes._tensorrt.precision import PreparedNetwork


def gpu_here() -> dict[str, Any] | None:
    """The first GPU here, as far as an engine depends on it; None without one."""
    if not driver.present():
        return None
    gpu = asdict(driver.devices()[0])
    return {name: gpu[name] for name in ("name", "compute_capability", "driver")}


def timing_cache(job: Job, product: str, version: str) -> str | None:
    """The file of timings for this product, version, GPU and driver; None where none is kept."""
    gpu = gpu_here()
    if job.cache is None or gpu is None:
        return None
    parts = (product, version, gpu["name"], gpu["compute_capability"], gpu["driver"])
    name = re.sub(r"[^\w.]+", "-", "_".join(str(part) for part in parts))
    return str(job.cache / "timing" / f"{name}.cache")


def _layer_records(layers: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Name, type, precision, tactic and reformat of every layer."""
    names = ("name", "type", "precision", "tactic", "reformat")
    return [{name: each[name] for name in names} for each in layers]


def facts(
    about: sidecar.Sidecar, prepared: PreparedNetwork, result: Mapping[str, Any]
) -> dict[str, Any]:
    """Facts of the engine; its precisions by its inspector on a GPU, else as the model lets expect."""
    record: dict[str, Any] = {
        "engine": {
            **{name: getattr(about, name) for name in ("product", "version", "gpu", "driver")},
            "profiles": list(about.profiles),
            "flags": list(about.flags),
            "targets": list(about.targets),
            "seconds": result["seconds"],
            "plan_bytes": about.plan_bytes,
            "timing_cache": result["timing_cache"],
        }
    }
    inspected = result["engine"]
    if inspected is None:
        record["expectation_by"] = "the model, for no GPU is here"
        return record
    counted = {name: inspected[name] for name in ("detailed", "reformats", "precisions")}
    record["engine"] |= {"inspected": {**counted, "layers": _layer_records(inspected["layers"])}}
    if inspected["detailed"]:
        expected = inspection.expectation(prepared.precision, result["network"], inspected)
        record |= {"expectation": expected["text"], "expectation_by": "the engine's inspector"}
    return record


def written(
    source: Path,
    plan: Path,
    prepared: PreparedNetwork,
    build: Build,
    result: Mapping[str, Any],
    **more: Any,
) -> sidecar.Sidecar:
    """The sidecar of a plan, from the ONNX file `source`, the build's settings and its result."""
    device = result["device"] or {}
    return sidecar.Sidecar(
        product=result["product"],
        version=result["version"],
        plan_sha256=sidecar.sha256_of(plan),
        plan_bytes=plan.stat().st_size,
        onnx_sha256=sidecar.sha256_of(source),
        precision=prepared.precision,
        cuda=device.get("cuda"),
        driver=device.get("driver"),
        gpu=device.get("name"),
        compute_capability=device.get("compute_capability"),
        targets=tuple(build.targets),
        profiles=tuple(build.profiles),
        inputs=tuple(result["network"]["inputs"]),
        outputs=tuple(result["network"]["outputs"]),
        layers=tuple(_layer_records(result["engine"]["layers"])) if result["engine"] else (),
        network=tuple(
            {name: layer[name] for name in ("type", "precision")}
            for layer in result["network"]["layers"]
        ),
        flags=tuple(result["flags"]),
        python=result["python"],
        **more,
    )
