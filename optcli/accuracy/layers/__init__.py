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
from optcli.accuracy.layers.process import LayersRequest
from optcli.artifact import Artifact
from optcli.data import DataSettings
from optcli.results.layers import Layers
from optcli.settings import TensorSpec

SAMPLES = 8


def compare(
    baseline: Artifact,
    child: Artifact,
    inputs: Sequence[TensorSpec],
    data: DataSettings,
    folder: Path,
    *,
    samples: int = SAMPLES,
    threads: int = 1,
    made_by: Mapping[str, Any] | None = None,
    log: Path | None = None,
    timeout_s: float | None = None,
) -> Layers:
    """Compare two artifacts layer by layer on the first samples of a data set, in a fresh process.

    `inputs` are the recipe's; paths in `data` are relative to `folder`.
    `made_by` is the step that made the child, `{"step": pass, "options": {...}}`, as the store keeps
    it: the advice names its options. Where the two cannot be compared `reason` of the result says why.
    Raises `InputError` for data that cannot be read, `StepError` where the process dies.
    """
    unlike = advice.incomparable(baseline, child)
    if unlike is not None:
        return Layers(reason=unlike)
    request = LayersRequest(
        baseline=baseline,
        child=child,
        inputs=tuple(inputs),
        data=data,
        folder=folder,
        samples=samples,
        threads=threads,
        made_by=dict(made_by or {}),
    )
    return workers.run(
        "optcli.accuracy.layers.process:serve",
        request,
        Layers,
        log=log,
        environment={"OMP_NUM_THREADS": str(threads)},
        timeout_s=timeout_s,
        confined=() if baseline.foreign or child.foreign else None,
    )


__all__ = ["SAMPLES", "compare"]
