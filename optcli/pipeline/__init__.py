"""The pipeline: from a recipe to artifacts, measurements and one report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optcli.pipeline.building import build as build

__all__ = ["build"]


def __getattr__(name: str) -> Any:
    """Import `build` on first use: workers import a module of this package, and little else."""
    if name == "build":
        from optcli.pipeline.building import build

        return build
    raise AttributeError(f"module 'optcli.pipeline' has no attribute {name!r}")
