"""A runner on the GPU held against one on the CPU."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from tiny_networks import INPUTS, feed

from optcli.runners import Runner

SPECS = INPUTS["Conv"]


def agree(tried: Runner, right: Runner, *, allowed: float, sizes: Iterable[int]) -> dict[str, Any]:
    """Both open; the largest difference is a share of the largest output. Gives what `tried` says."""
    assert tried.device_ms() is None
    for size in sizes:
        values = feed(SPECS, size)
        found, wanted = tried.run(values), right.run(values)
        assert list(found) == list(wanted)
        for key, array in wanted.items():
            error = np.abs(found[key] - array).max() / np.abs(array).max()
            assert error <= allowed, f"{key} at batch size {size}"
        assert 0 < tried.device_ms() < 1000
    return tried.effective()
