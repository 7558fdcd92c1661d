"""Import heavy libraries by name, and no more of them than is used."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

# This module of torchvision imports torch's compiler for one function that asks whether there is one.
_ROI_ALIGN = "torchvision.ops.roi_align"
_COMPILER = "torch._dynamo"
_COMPILER_UTILS = "torch._dynamo.utils"
_IMPORT = f"from {_COMPILER_UTILS} import is_compile_supported"


def bring_in(names: Iterable[str]) -> None:
    """Import modules, with the garbage collector paused meanwhile. Raises ImportError as ever.

    Imported objects stay alive: a collection during the import costs time and frees next to nothing.
    """
    with without_collections():
        for name in names:
            importlib.import_module(name)


@contextmanager
def without_collections() -> Iterator[None]:
    """Pause the garbage collector: for what makes many objects that are all still used afterwards."""
    paused = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if paused:
            gc.enable()


def spare_the_compiler() -> None:
    """From now on importing torchvision does not import torch's compiler, until it is used.

    The compiler is 880 modules, most of the time that opening a ResNet-50 in a fresh process takes.
    """
    if not any(isinstance(finder, _SparingFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _SparingFinder())


class _SparingFinder(MetaPathFinder):
    """Finds the one module of torchvision that imports the compiler."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _ROI_ALIGN or _COMPILER in sys.modules:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None or not _asks_one_question(spec.origin):
            return None
        spec.loader = _SparingLoader(spec.loader)
        return spec


class _SparingLoader(Loader):
    """Loads a module that finds a stand-in for the compiler's utilities; it is gone afterwards."""

    def __init__(self, usual: Loader) -> None:
        self._usual = usual

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._usual.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = module.__loader__ = self._usual
        sys.modules[_COMPILER_UTILS] = _stand_in()
        try:
            self._usual.exec_module(module)
        finally:
            del sys.modules[_COMPILER_UTILS]


def _asks_one_question(source: str | None) -> bool:
    """Whether a file names the compiler once, for that function: other versions may want more."""
    try:
        text = Path(source or "").read_text()
    except (OSError, ValueError):
        return False
    return text.count("_dynamo") == 1 and f"\n{_IMPORT}\n" in text


def _stand_in() -> ModuleType:
    """A module with the one function that torchvision takes, which asks the compiler when called."""

    def is_compile_supported(device_type: str) -> bool:
        utils = importlib.import_module(_COMPILER_UTILS)
        return bool(utils.is_compile_supported(device_type))

    module = ModuleType(_COMPILER_UTILS)
    vars(module)["is_compile_supported"] = is_compile_supported
    return module
