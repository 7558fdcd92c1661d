"""What `verify-accuracy` and `tune` found since a build: where the error starts, and what mends it."""

from __future__ import annotations

from collections.abc import Iterator

from optcli.report import wording
from optcli.results import Report
from optcli.results.layers import Layers
from optcli.results.repair import Repair


def lines(report: Report) -> Iterator[str]:
    """One line for each variant whose layers were compared, and for each that was repaired."""
    for name, variant in report.variants.items():
        if variant.layers is not None:
            yield f"{name}: {_start(variant.layers)}"
        if variant.repair is not None:
            yield f"{name}: {_repair(variant.repair)}"


def _start(layers: Layers) -> str:
    worst = next((row for row in layers.rows if row.rank != float("inf")), None)
    if worst is None:
        return layers.reason or f"no layer adds an error, of {layers.compared} tensors"
    level = "not finite" if worst.own_db is None else f"{worst.own_db:.1f} dB of signal to noise"
    advice = f"; try {worst.advice}" if worst.advice else ""
    return (
        f"the error starts at {worst.node or worst.tensor} ({worst.operator}, {worst.kind}: {level},"
        f" the worst of {layers.compared} tensors){advice}"
    )


def _repair(repair: Repair) -> str:
    count = len(repair.trials) - 1
    best = repair.best
    if best is None:
        return f"no repair in {count} trials: none is inside the bar"
    value = "" if best.value is None else f", {repair.metric} {wording.percent(best.value)}"
    speed = "" if best.speedup is None else f", {wording.times(best.speedup)} as fast as in float"
    word = (
        "repaired" if repair.outcome == "repaired" else "inside the bar again, but perhaps not faster"
    )
    return f"{word} by trial {best.number} of {count} ({best.label}){value}{speed}"
