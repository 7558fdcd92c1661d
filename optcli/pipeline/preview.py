"""What a build would do, without doing it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optcli.pipeline.making import planned
from optcli.store import Store
from optcli.store import explain as store_explain


def preview(
    recipe: Path,
    *,
    store: Path | None = None,
    overrides: Sequence[str] = (),
    only: Sequence[str] = (),
    explain: bool = False,
) -> tuple[list[str], dict[str, Any]]:
    """What a build would do, without doing it: lines to read, and the same as plain data.

    With `explain`, each step that must run comes with the ingredient that differs from the nearest
    result in the store.
    """
    kept = Store(Store.default_root(store))
    to_do = planned(recipe, kept, overrides, only)
    current = {step.key: step.ingredients for v in to_do.variants for step in v.steps}
    current |= to_do.data_roles
    lines: list[str] = []
    record: dict[str, Any] = {"recipe": to_do.recipe.name, "variants": {}}
    shown: set[str] = set()
    for variant in to_do.variants:
        lines.append(f"{variant.name}  (runs in {variant.runner_name})")
        steps = []
        for step in variant.steps:
            cached = kept.sound("artifact", step.key) is not None
            state = "cached" if cached else "to do"
            lines.append(f"  {state:<7} {step.name:<20} {step.format.value:<10} {step.key[:12]}")
            steps.append({"name": step.name, "key": step.key, "cached": cached})
            if explain and not cached and step.key not in shown:
                why = list(store_explain(step.ingredients, kept, "artifact", current).lines())
                lines.extend(f"          {line}" for line in why)
                steps[-1]["why"] = why
            shown.add(step.key)
        for one in variant.missing:
            lines.append(f"  skipped: {one.what} ({one.hint})")
        for one in variant.unmeasurable:
            if one not in variant.missing:
                lines.append(f"  not measured: {one.what} ({one.hint})")
        record["variants"][variant.name] = {
            "steps": steps,
            "missing": [one.what for one in variant.missing],
        }
    return lines, record
