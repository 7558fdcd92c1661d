"""Workers for a build that has everything to do, started before its recipe is read.

Reading a recipe takes as long as importing what each worker needs. On a second core both happen at
once. A look at the recipe's text says whether PyTorch will be needed, which takes longest to import.
Where the store holds something, there may be nothing to do: then no worker is started ahead.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from optcli import regular_files
from optcli.environment import usable_cores
from optcli.store import Store
from optcli.workers import early, environment_of_steps

# What every worker of a build needs, whatever the recipe says: `optcli.pipeline.orders` has it, too,
# and importing that would take as long as what is to be saved.
GROUND = ("numpy", "optcli.pipeline.step")

# Sources of models that PyTorch reads.
TORCH_SOURCES = ("exported", "python", "timm", "torchscript", "torchvision")
_TORCH_SOURCE = re.compile(rb"\bsource[\"']?\s*:\s*[\"']?(%s):" % "|".join(TORCH_SOURCES).encode())
_LOOK_BYTES = 1 << 16


def early_workers(store: Store, recipe: Path) -> AbstractContextManager[None]:
    """Start a server of workers where there is a second core and the store is empty.

    The server ends with the block, unless a build has taken it.
    """
    cores = usable_cores()
    if cores < 2 or store.remote_place is not None or (store.root / "entries").exists():
        return nullcontext()
    modules = (*GROUND, "torch") if _names_torch_source(recipe) else GROUND
    return early.waiting(modules, environment_of_steps(cores))


def _names_torch_source(recipe: Path) -> bool:
    """Whether the text seems to name such a source. Nothing but time hangs on that."""
    with suppress(OSError), regular_files.opened(recipe) as stream:
        return _TORCH_SOURCE.search(stream.read(_LOOK_BYTES)) is not None
    return False
