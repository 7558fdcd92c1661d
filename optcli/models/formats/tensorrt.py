"""Engines of TensorRT: `model.plan` and what built it, `engine.json`; weights beside a stripped plan.

A plan is native code for one GPU architecture and one version of TensorRT: it is opened by a runner,
from the own store or from a folder that the person trusts.
"""

from __future__ import annotations

import os
from pathlib import Path

from optcli.errors import InputError
from optcli.models.engines import TITLES, EngineError, sidecar

FILE = sidecar.PLAN
PRODUCT = "tensorrt"


def check_product(folder: Path, product: str) -> sidecar.Sidecar:
    """The sidecar of a sound engine of a product.

    Raises `InputError` where plan and sidecar do not belong together, or are another product's.
    """
    try:
        about = sidecar.check_plan(folder)
    except EngineError as error:
        raise InputError(error.message, place=error.place, hint=error.hint) from error
    if about.product != product:
        built = TITLES.get(about.product, about.product)
        raise InputError(
            f"{built} built this engine, wanted one of {TITLES[product]}",
            place=os.fspath(folder / FILE),
            hint=f"build it with {product}_engine",
        )
    return about


def open(folder: Path) -> sidecar.Sidecar:
    """What stands in the sidecar; the plan itself opens on a GPU only. Raises as `check_product`."""
    return check_product(folder, PRODUCT)
