"""Where the error starts: a float network and what was made from it, layer by layer.

Each layer of the optimized network gets the float network's inputs, so that what it adds is told
apart from what it was handed: a layer behind a broken one is not blamed for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optcli import workers
from optcli.accuracy.layers import advice
from optcli.artifact import Artifact
from optcli.results.layers import Layers
from optcli.settings import TensorSpec

SAMPLES = 8


def compare(
    baseline: Artifact,
    child: Artifact,
    inputs: Sequence[TensorSpec],
    data: Mapping[str, Any],
    folder: Path,
    *,
    samples: int = SAMPLES,
    threads: int = 1,
    made_by: Mapping[str, Any] | None = None,
    log: Path | None = None,
    timeout_s: float | None = None,
) -> Layers:
    """Compare two artifacts layer by layer on the first samples of a data set, in a fresh process.

    `inputs` are the recipe's; `data` is the record of a `DataSettings`, its paths relative to `folder`.
    `made_by` is the step that made the child, `{"step": pass, "options": {...}}`, as the store keeps
    it: the advice names its options. Where the two cannot be compared `reason` of the result says why.
    Raises `InputError` for data that cannot be read, `StepError` where the process dies.
    """
    unlike = advice.incomparable(baseline, child)
    if unlike is not None:
        return Layers(reason=unlike)
    payload = {
        "baseline": baseline.to_record(),
        "child": child.to_record(),
        "inputs": [spec.model_dump(mode="json") for spec in inputs],
        "data": dict(data),
        "folder": str(folder),
        "samples": samples,
        "threads": threads,
        "made_by": dict(made_by or {}),
    }
    found = workers.run(
        "optcli.accuracy.layers.process:serve",
        payload,
        log=log,
        environment={"OMP_NUM_THREADS": str(threads)},
        timeout_s=timeout_s,
        confined=() if baseline.foreign or child.foreign else None,
    )
    return Layers.model_validate(found)


__all__ = ["SAMPLES", "compare"]
