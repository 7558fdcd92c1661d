"""A store that the pages share: many of them begin with the network of the quickstart."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session")
def quickstart_store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The store's folder, one for all processes of the run: whoever comes first builds."""
    folder = tmp_path_factory.getbasetemp()
    return str((folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "store")
