"""Which input arrays a runtime reads where they lie, and which are copied first."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

# Handing memory over takes microseconds, as does copying less than so many bytes.
_LARGE_BYTES = 256 << 10


def reads_in_place(array: np.ndarray) -> bool:
    """Whether an array is large and its memory can be read as it is: contiguous, aligned, writeable.

    Writeable, since PyTorch and OpenVINO take no other memory over.
    """
    flags = array.flags
    return array.nbytes >= _LARGE_BYTES and flags.c_contiguous and flags.aligned and flags.writeable
