"""What tests on a GPU share."""

from __future__ import annotations

import pytest
from needs import needs

from optcli.models.engines import driver


@pytest.fixture
def gpu() -> driver.CudaDevice:
    """The first GPU; skips with the reason where there is none, or where torch does not see it."""
    needs("gpu")
    needs("gpu in torch")
    return driver.devices()[0]
