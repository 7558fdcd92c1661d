"""Workers for a build that has everything to do, started before its recipe is read.

Reading a recipe takes as long as importing what each worker needs. On a second core both happen at
once. Where the store holds something, there may be nothing to do: then no worker is started ahead.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from optcli.environment import usable_cores
from optcli.store import Store
from optcli.workers import early, environment_of_steps

# What every worker of a build needs, whatever the recipe says: `optcli.pipeline.orders` has it, too,
# and importing that would take as long as what is to be saved.
GROUND = ("numpy", "optcli.pipeline.step")


def early_workers(store: Store) -> AbstractContextManager[None]:
    """Start a server of workers where there is a second core and the store is empty.

    The server ends with the block, unless a build has taken it.
    """
    cores = usable_cores()
    if cores < 2 or store.remote_place is not None or (store.root / "entries").exists():
        return nullcontext()
    return early.waiting(GROUND, environment_of_steps(cores))
