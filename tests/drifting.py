"""References and traffic of synthetic images, as deploy and a server would have written them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from optcli.data import DataSettings
from optcli.results.loadtest import Drift
from optcli.serving.drift import compared, comparing, input_statistics
from optcli.serving.drift.compared import About
from optcli.serving.drift.input_statistics import Statistics, unpacked
from optcli.settings import TensorSpec

IMAGE = {"name": "image", "shape": ("batch", 3, 8, 8), "batch": {"min": 1, "opt": 2, "max": 8}}


def photographs(count: int, seed: int) -> np.ndarray:
    """Pixels [count, 3, 8, 8], 0 to 255 as float32, of own light and contrast; red above blue."""
    rng = np.random.default_rng(seed)
    light = rng.uniform(60, 160, (count, 1, 1, 1))
    tint = np.array([18.0, 2.0, -15.0]).reshape(1, 3, 1, 1) + rng.normal(0, 6, (count, 3, 1, 1))
    contrast = rng.uniform(5, 30, (count, 1, 1, 1))
    values = light + tint + contrast * rng.standard_normal((count, 3, 8, 8))
    return np.clip(values.round(), 0, 255).astype(np.float32)


def normalized(pixels: np.ndarray) -> np.ndarray:
    """As many networks want them."""
    mean = np.array([0.5, 0.45, 0.4], np.float32).reshape(1, 3, 1, 1)
    return (pixels / 255 - mean) / np.float32(0.25)


def described(
    folder: Path, arrays: dict[str, np.ndarray], *specs: dict[str, Any], role: str = "calibration"
) -> Statistics:
    """What deploy writes for calibration data that are prepared already."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "data.npz", **arrays)  # type: ignore[arg-type]
    request = compared.ReferenceRequest(
        model="net",
        role=role,
        data=DataSettings.model_validate({"source": "npz:data.npz"}),
        folder=folder,
        inputs=tuple(TensorSpec.model_validate(spec) for spec in specs or (IMAGE,)),
        out=folder / "reference.npz",
    )
    count = compared.summarise(request, None)  # type: ignore[arg-type]
    found = unpacked(request.out.read_bytes())
    assert count == len(found.reference[0])
    return found


def seen(found: Statistics, *periods: dict[str, np.ndarray], counts: Sequence[int] = ()) -> Statistics:
    """The same with inputs that a server saw, all of which it kept."""
    hows = found.about["inputs"]
    rows = [
        [
            np.array(
                [input_statistics.of_row(row, how) for row in feed[how["name"]]], np.float32
            ).reshape(-1, len(input_statistics.names(how)))
            for how in hows
        ]
        for feed in periods
    ]
    now = time.time()
    said = [
        {"begun": now, "seen": counts[index] if counts else len(one[0]), "missed": 0}
        for index, one in enumerate(rows)
    ]
    about = {**found.about, "periods": said, "written": now}
    return unpacked(Statistics(about, found.reference, rows).packed())


def drift(found: Statistics) -> Drift:
    """The answer."""
    return comparing.compared(About.model_validate(found.about), found, "here")
