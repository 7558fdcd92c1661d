"""Tune: tries options by building. Searches under constraints, or repairs one variant's accuracy."""

from __future__ import annotations

from optcli.tuning.repairing import repair
from optcli.tuning.search import tune

__all__ = ["repair", "tune"]
