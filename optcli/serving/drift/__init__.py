"""Drift: whether the inputs that a server sees are like those that its model was calibrated with."""

from __future__ import annotations

from pathlib import Path

__all__ = ["COPIED", "FOLDER", "VARIABLE"]

# What is copied into bundles, and where it lies.
COPIED = ("input_statistics",)
FOLDER = Path(__file__).parent
# Where a bundle's server writes what it keeps; empty: nowhere.
VARIABLE = "KEPT_INPUTS"
