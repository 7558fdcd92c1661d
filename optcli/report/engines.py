"""Engines in a report: whether they compute in what was asked for, and what they do layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from optcli.results import Report, VariantReport

HEADS = ("layer", "type", "precision", "tactic")


def lines(report: Report) -> Iterator[str]:
    """One sentence per engine: what it computes in and who says so, its layers that only reformat."""
    for name, variant in report.variants.items():
        facts = _facts(variant)
        if "expectation" not in facts:
            continue
        sentence = f"{name}: {facts['expectation']} (says {facts['expectation_by']})"
        inspected = facts["engine"].get("inspected")
        if inspected is not None:
            count = len(inspected["layers"])
            sentence += f"; {inspected['reformats']} of its {count} layers only reformat tensors"
        yield sentence


def layers(variant: VariantReport) -> list[tuple[str, str, str, str]]:
    """The engine's layers by its inspector, a row each as `HEADS` has it; none where it is unknown."""
    inspected = _facts(variant).get("engine", {}).get("inspected") or {"layers": []}
    return [
        (each["name"], each["type"], each["precision"] or "?", each["tactic"] or "?")
        for each in inspected["layers"]
    ]


def _facts(variant: VariantReport) -> Mapping[str, Any]:
    """The facts of the step that built an engine; empty for other variants."""
    facts = variant.steps[-1].facts if variant.steps else {}
    return facts if isinstance(facts.get("engine"), dict) else {}
