"""Import heavy libraries by name."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterable


def bring_in(names: Iterable[str]) -> None:
    """Import modules, with the garbage collector paused meanwhile. Raises ImportError as ever.

    Imported objects stay alive: a collection during the import costs time and frees next to nothing.
    """
    paused = gc.isenabled()
    gc.disable()
    try:
        for name in names:
            importlib.import_module(name)
    finally:
        if paused:
            gc.enable()
