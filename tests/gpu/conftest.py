"""What tests on a GPU share."""

from __future__ import annotations

import pytest

from optcli.engines import driver


@pytest.fixture
def gpu() -> driver.Device:
    """The first GPU; skips with the reason where there is none, or where torch does not see it."""
    reason = driver.absence()
    if reason is not None:
        pytest.skip(f"needs an NVIDIA GPU: {reason.message}")
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip(f"torch {torch.__version__} sees no GPU (built for CUDA {torch.version.cuda})")
    return driver.devices()[0]
