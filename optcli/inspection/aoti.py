"""Into AOTInductor packages: native code, so what their folder and optcli's own notes say."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optcli.formats import aoti as aoti_format
from optcli.formats.aoti_models import Routes
from optcli.settings import TensorSpec


def look(path: Path, inputs: Sequence[TensorSpec]) -> dict[str, Any]:
    """Look into a package without loading it: that would run it. Raises as `aoti.check`."""
    if path.is_dir():
        routes = _routes(path)
    else:
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(path, Path(folder) / aoti_format.FILE)
            routes = _routes(Path(folder))
    notes = ["compiled to native code: operators and operations cannot be read from it"]
    if routes.fixed:
        notes.append(f"compiled for {routes.compiled_for()}")
    records = [{"name": spec.name, "dtype": spec.dtype, "shape": spec.shape} for spec in inputs]
    return {
        "inputs": records or None,
        "notes": notes,
    }


def _routes(folder: Path) -> Routes:
    aoti_format.check(folder)
    return Routes.of_names(list(aoti_format.models(folder)))
