"""What metrics of maps share: bringing an output to the size of its target."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def resized(maps: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Maps `[channels, height, width]` brought to another height and width, bilinearly, float32."""
    height, width = shape
    return _along(_along(maps.astype("float32"), 1, height), 2, width)


def _along(maps: np.ndarray, axis: int, size: int) -> np.ndarray:
    """Maps with another size along an axis: between the centres of two pixels, linearly."""
    import numpy as np

    last = maps.shape[axis] - 1
    centres = (np.arange(size) + 0.5) * (maps.shape[axis] / size) - 0.5
    lower = np.clip(centres, 0, last).astype(int)
    upper = np.minimum(lower + 1, last)
    shares = np.clip(centres - lower, 0, 1).astype("float32")
    scaled: np.ndarray = maps.take(upper, axis)
    scaled -= maps.take(lower, axis)
    scaled *= shares[:, None] if axis == 1 else shares
    scaled += maps.take(lower, axis)
    return scaled
