"""Engines of TensorRT-RTX, a product of its own: the same files as TensorRT's, and not its plans."""

from __future__ import annotations

from pathlib import Path

from optcli.models.engines import sidecar
from optcli.models.formats.tensorrt import FILE as FILE
from optcli.models.formats.tensorrt import check_product

PRODUCT = "tensorrt_rtx"


def open(folder: Path) -> sidecar.Sidecar:
    """What stands in the sidecar; the plan itself opens on a GPU only. Raises as `check_product`."""
    return check_product(folder, PRODUCT)
