"""The shape of a distribution in few numbers: what a chart needs, without the raw samples."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from optcli.measure.latency.fitness import counting
from optcli.measure.latency.samples import Measured, load

if TYPE_CHECKING:
    import numpy as np

POINTS = 201
# What NumPy, zipfile and zlib raise over what is no whole .npz of ours.
_DAMAGED = (
    OSError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RuntimeError,
    MemoryError,
    zipfile.BadZipFile,
    zlib.error,
)


def quantiles(measured: Measured) -> dict[str, dict[int, list[float]]]:
    """Milliseconds at evenly spaced probabilities from 0 to 1, by variant and batch size.

    Over the calls of an artifact's series that count, as in the table, whatever launch or round they
    belong to; four significant digits, as no chart shows more.
    """
    return {
        name: {
            series.batch_size: milliseconds(counting(measured, series).ns)
            for series in measured.of(name)
        }
        for name in measured.names
    }


def milliseconds(ns: np.ndarray) -> list[float]:
    """Milliseconds at `POINTS` evenly spaced probabilities, of nanoseconds of any shape."""
    import numpy as np

    return [float(f"{ms:.4g}") for ms in np.quantile(ns, np.linspace(0.0, 1.0, POINTS)) / 1e6]


def quantiles_of(samples: Path) -> dict[str, dict[int, list[float]]]:
    """From the raw samples beside a report; nothing where they are not there, or not readable."""
    try:
        return quantiles(load(samples))
    except _DAMAGED:
        return {}
