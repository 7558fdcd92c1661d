"""The modules that deploy copies into bundles, loaded from where they lie."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from optcli.serving import drift, prediction

RAY_FILES = Path(prediction.__file__).parents[1] / "deploy" / "ray_files"


def load(name: str) -> ModuleType:
    """One of them. What it imports beside it is not found, but what `postprocess` is copied with."""
    if name == prediction.ANSWERING[0]:
        for module in prediction.ANSWERING[1:]:
            sys.modules.setdefault(module, load(module))
    known = f"copied_{name}"
    if known not in sys.modules:
        path = {**prediction.COPIED, **drift.COPIED}.get(name, RAY_FILES / f"{name}.py")
        spec = importlib.util.spec_from_file_location(known, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[known] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[known])
    return sys.modules[known]
