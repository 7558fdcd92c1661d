"""Small generated data sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from generated import picture


@pytest.fixture
def classes(tmp_path: Path) -> Path:
    """Three class folders of four images, a hidden file and a readme among them."""
    root = tmp_path / "photos"
    for number in range(12):
        folder = root / ("ant", "bee", "cat")[number // 4]
        folder.mkdir(parents=True, exist_ok=True)
        picture(number).save(folder / f"{number:02d}.png")
    (root / "ant" / ".hidden.png").write_bytes(b"nothing")
    (root / "README.md").write_text("images")
    return root


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    """An npz of 20 rows: image, second, target, id, split (16 train, 4 test)."""
    draw = np.random.default_rng(0)
    np.savez(
        tmp_path / "rows.npz",
        image=draw.integers(0, 256, (20, 8, 8), dtype=np.uint8),
        second=draw.normal(size=(20, 5)),
        target=np.arange(20) % 10,
        id=np.array([f"row-{row}" for row in range(20)]),
        split=np.array(["train"] * 16 + ["test"] * 4),
    )
    return tmp_path / "rows.npz"
