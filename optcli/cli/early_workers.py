"""Workers for a build that has everything to do, started before its recipe is read.

Reading a recipe takes as long as importing what each worker needs. On a second core both happen at
once. Where the store holds something, there may be nothing to do: then no worker is started ahead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from optcli.environment import usable_cores
from optcli.store import Store
from optcli.workers import ForkServer, environment_of_steps

# What every worker of a build needs, whatever the recipe says: `optcli.pipeline.orders` has it, too,
# and importing that would take as long as what is to be saved.
GROUND = ("numpy", "optcli.pipeline.step")


@contextmanager
def early_workers(store: Store) -> Iterator[ForkServer | None]:
    """A server of workers that imports the ground; None for one core or a store that holds something.

    It ends with the block.
    """
    cores = usable_cores()
    if cores < 2 or store.remote is not None or (store.root / "entries").exists():
        yield None
        return
    server = ForkServer(GROUND, environment_of_steps(cores))
    try:
        yield server
    finally:
        server.close()
