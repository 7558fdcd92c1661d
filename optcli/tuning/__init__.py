"""Tune: proposes options of passes, builds through `build`, reads verdicts."""

from __future__ import annotations

from optcli.tuning.repairing import repair

__all__ = ["repair"]
