"""What every test may use: real data and models where they are, and an empty store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from optcli.store import Store

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data sets and models: OPTCLI_SHARED, else `shared` beside the repository.

    Tests that ask for it are skipped, with the reason, where there is none.
    """
    folder = Path(os.environ.get("OPTCLI_SHARED") or REPOSITORY.parent / "shared")
    if not (folder / "datasets").is_dir():
        pytest.skip(f"no real data and models at {folder} (OPTCLI_SHARED names another place)")
    return folder


@pytest.fixture
def tmp_store(tmp_path: Path) -> Store:
    """An empty store."""
    from optcli.store import Store

    return Store(tmp_path / "store")
