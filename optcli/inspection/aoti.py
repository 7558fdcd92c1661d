"""Into AOTInductor packages: native code, so what their folder and optcli's own notes say."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optcli.formats import aoti as aoti_format
from optcli.settings import TensorSpec


def look(path: Path, inputs: Sequence[TensorSpec]) -> dict[str, Any]:
    """Look into a package without loading it: that would run it. Raises as `aoti.check`."""
    if path.is_dir():
        aoti_format.check(path)
    else:
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(path, Path(folder) / aoti_format.FILE)
            aoti_format.check(Path(folder))
    known = [{"name": spec.name, "dtype": spec.dtype, "shape": spec.shape} for spec in inputs]
    return {
        "inputs": known or None,
        "notes": ["compiled to native code: operators and operations are not in it to be read"],
    }
