"""Open a built engine: its sidecar first, then the driver, TensorRT's Runtime only at the end."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from optcli.models.engines import EngineError, driver, sidecar
from optcli.models.engines.bindings import load
from optcli.models.engines.gpu import Gpu
from optcli.models.engines.messages import LogLine
from optcli.models.engines.running import refitting
from optcli.models.engines.running.execution import EngineExecution


def open_here(
    job: Mapping[str, Any], heard: Callable[[LogLine], None] | None = None
) -> EngineExecution:
    """The engine in a folder, ready to run in this process.

    `job` is plain data: `folder`, `product`, and optionally `device` (the GPU's number), `cuda_graphs`,
    `profile`, `kernel_cache`. Raises `EngineError` that names both sides where the engine was built by
    or for something else; its `hint` is to build it again.
    """
    folder = Path(job["folder"])
    about = sidecar.check_plan(folder)
    bindings = load(job["product"])
    place = os.fspath(folder / sidecar.PLAN)
    # What can be told without a GPU is told first.
    sidecar.check_here(about, sidecar.LoadingEnvironment(bindings.product, bindings.version), place)
    device = driver.require(int(job.get("device") or 0))
    here = sidecar.LoadingEnvironment(
        bindings.product,
        bindings.version,
        gpu=device.name,
        compute_capability=device.compute_capability,
        driver=device.driver,
    )
    built_on = sidecar.check_here(about, here, place)
    cache = job.get("kernel_cache")
    if cache and not Path(cache).absolute().parent.is_dir():
        raise EngineError(
            "there is no folder for the file of kernels", place=cache, hint="make it first"
        )
    execution = EngineExecution(
        bindings,
        (folder / sidecar.PLAN).read_bytes(),
        Gpu(device.index),
        cuda_graphs=job.get("cuda_graphs") or "auto",
        profile=job.get("profile"),
        host_code="version" in about.compatible,
        weights=folder / refitting.MODEL if about.stripped else None,
        kernel_cache=Path(cache) if cache else None,
        heard=heard,
    )
    execution.notes = {"precision": about.precision, "built_on": built_on}
    return execution
