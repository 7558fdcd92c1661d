"""Input specs and images for tests of data."""

from __future__ import annotations

import numpy as np
from PIL import Image

from optcli.settings import TensorSpec


def spec(*shape: int | str, dtype: str = "float32", name: str = "image") -> TensorSpec:
    return TensorSpec.model_validate({"name": name, "dtype": dtype, "shape": ["batch", *shape]})


def picture(number: int, mode: str = "RGB", size: tuple[int, int] = (20, 12)) -> Image.Image:
    """A reproducible image of noise, `size` as (width, height)."""
    draw = np.random.default_rng(number)
    rgb = Image.fromarray(draw.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
    return rgb if mode == "RGB" else rgb.convert(mode)
