"""Into AOTInductor packages: native code, so what their folder and optcli's own notes say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optcli.models.formats import aoti as aoti_format
from optcli.models.formats.aoti import Routes
from optcli.scaffold.inspection.findings import as_folder
from optcli.settings import TensorSpec


def look(path: Path, inputs: Sequence[TensorSpec]) -> dict[str, Any]:
    """Look into a package without loading it: that would run it. Raises as `aoti.check`."""
    with as_folder(path, {aoti_format.FILE: path}) as folder:
        aoti_format.check(folder)
        routes = Routes.of_names(list(aoti_format.models(folder)))
    notes = ["compiled to native code: operators and operations cannot be read from it"]
    if routes.fixed:
        notes.append(f"compiled for {routes.compiled_for()}")
    records = [{"name": spec.name, "dtype": spec.dtype, "shape": spec.shape} for spec in inputs]
    return {"inputs": records or None, "notes": notes}
