"""Weights that are packed anew on every call, in words: what the pass that compiled them has found."""

from __future__ import annotations

from collections.abc import Iterator

from optcli.artifact import costly_packing
from optcli.report import wording
from optcli.results import Report


def lines(report: Report) -> Iterator[str]:
    """One sentence per variant that packs weights at a batch size at which it was measured."""
    for name, variant in report.variants.items():
        calls = costly_packing(variant.steps[-1].facts if variant.steps else {})
        if calls:
            sizes = wording.listed([f"{size} ({count} of them)" for size, count in calls.items()])
            yield (
                f"{name}: weights are packed on every call at batch size {sizes};"
                " fix the batch, or set `shapes: auto`"
            )
