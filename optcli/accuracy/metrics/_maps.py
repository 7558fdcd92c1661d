"""What metrics of maps share: bringing an output to the size of its target."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np


def resized(maps: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Maps `[channels, height, width]` brought to another height and width, bilinearly, float32."""
    import torch

    values = torch.from_numpy(maps.astype("float32"))[None]
    batch = torch.nn.functional.interpolate(values, size=shape, mode="bilinear", align_corners=False)
    scaled: np.ndarray = batch[0].numpy()
    return scaled
