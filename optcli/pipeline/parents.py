"""Which variant another one goes on from: what it is compared with beside the baseline."""

from __future__ import annotations

import json
from collections.abc import Sequence

from optcli.pipeline.plan import Plan, PlannedVariant


def parent_of(variant: PlannedVariant, plan: Plan) -> str | None:
    """The variant with the same passes in the same order, but for the fewest left out.

    None where there is none. `export, quantize` goes on from `export`, and so does `prune, export`:
    what pruning gains is told from what exporting gains. Of several that leave out as many, the one in
    the same runner, then the one that leaves out the last ones.
    """
    mine = _passes(variant)
    candidates: list[tuple[int, bool, bool, int, str]] = []
    for place, other in enumerate(plan.variants):
        theirs = _passes(other)
        if len(theirs) < len(mine) and _is_within(theirs, mine):
            elsewhere = other.runner_name != variant.runner_name
            cut_short = theirs == mine[: len(theirs)]
            left_out = len(mine) - len(theirs)
            candidates.append((left_out, elsewhere, not cut_short, place, other.name))
    return min(candidates)[-1] if candidates else None


def changes_network(variant: PlannedVariant) -> bool:
    """Whether a pass of it may change what the network computes, as quantizing and pruning do."""
    return any(step.traits is not None and step.traits.tolerance is None for step in variant.steps)


def _passes(variant: PlannedVariant) -> list[tuple[str, str]]:
    """The variant's steps by name and options; the source comes first."""
    options = (step.ingredients.get("options") for step in variant.steps)
    texts = (json.dumps(each, sort_keys=True, default=str) for each in options)
    return [(step.name, text) for step, text in zip(variant.steps, texts, strict=True)]


def _is_within(some: Sequence[tuple[str, str]], all_: Sequence[tuple[str, str]]) -> bool:
    """Whether `some` are among `all_`, in their order."""
    rest = iter(all_)
    return all(each in rest for each in some)
