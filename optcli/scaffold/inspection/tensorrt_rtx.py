"""Into engines of TensorRT-RTX."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optcli.models.formats.tensorrt_rtx import PRODUCT
from optcli.scaffold.inspection import tensorrt
from optcli.settings import TensorSpec


def look(path: Path, inputs: Sequence[TensorSpec]) -> dict[str, Any]:
    """Look into the folder of an engine, without loading it. Raises `InputError`."""
    return tensorrt.look(path, inputs, PRODUCT)
