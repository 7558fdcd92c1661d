"""What is tested here is how workers start and end: as a user's do."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _as_ever(cold_workers: None) -> None:
    pass
