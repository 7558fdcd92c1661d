"""Drift: whether the inputs that a server sees are like those that its model was calibrated with."""

from pathlib import Path

# What is copied into bundles, and where it lies.
COPIED = {"input_statistics": Path(__file__).parent / "input_statistics.py"}
