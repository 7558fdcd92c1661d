"""Worker processes: a crash, an abort, a hang or a memory kill costs one call, never the build.

Two ways to get one. `spawn` starts a fresh interpreter whose environment is set before any import:
for measuring, user code and everything on CUDA. `ForkServer.start` forks one from a process that has
imported torch already: for passes. Both give a `Child`; the function named in the call has the
signature `function(message: SomeType, channel: Channel) -> OtherType`, of types that `workers.messages`
turns into JSON and back.
"""

from __future__ import annotations

from optcli.workers.channel import Channel
from optcli.workers.parent import Child, ForkServer, Listener, run, spawn


def environment_of_steps(threads: int) -> dict[str, str]:
    """The environment of workers that make artifacts with so many threads."""
    count = str(threads)
    return {
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "OMP_WAIT_POLICY": "PASSIVE",  # as runners have it: a busy machine costs less
        "GOMP_SPINCOUNT": "10000",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
