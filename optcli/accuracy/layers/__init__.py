"""Where the error starts: a float network and what was made from it, layer by layer.

Each layer of the optimized network gets the float network's inputs, so that what it adds is known
apart from what it was handed: a layer behind a broken one is not blamed for it.
"""

from __future__ import annotations

from pathlib import Path

from optcli import workers
from optcli.accuracy.layers.process import SAMPLES, LayersRequest, incomparable
from optcli.results.outcomes import Layers


def compare(
    request: LayersRequest, *, log: Path | None = None, timeout_s: float | None = None
) -> Layers:
    """Compare two artifacts layer by layer on the first samples of a data set, in a fresh process.

    Where the two cannot be compared `reason` of the result says why. Raises `InputError` for data that
    cannot be read, `StepError` where the process dies.
    """
    unlike = incomparable(request.baseline, request.child)
    if unlike is not None:
        return Layers(reason=unlike)
    return workers.run(
        "optcli.accuracy.layers.process:serve",
        request,
        Layers,
        log=log,
        environment={"OMP_NUM_THREADS": str(request.threads)},
        timeout_s=timeout_s,
        confined=() if request.baseline.foreign or request.child.foreign else None,
    )
