"""Against figures that were recorded earlier: for people who cannot run the baseline, and said so."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optcli import latency
from optcli.gate import comparisons
from optcli.gate.latency import STEP, threads_of
from optcli.latency import Candidate
from optcli.pipeline import quiet
from optcli.pipeline.gating.side import Side
from optcli.results.gate import Comparison
from optcli.settings import LatencySettings

if TYPE_CHECKING:
    from optcli.pipeline.gating.variant import Gating

_MARK = "against figures recorded elsewhere or earlier, not measured side by side"


def compare(gating: Gating, side: Side) -> tuple[list[Comparison], list[str]]:
    """The candidate measured now, beside what the baseline's report says."""
    report = gating.before.report
    then = report.variants.get(side.name) if report is not None else None
    if then is None or not then.latency:
        why = "the baseline has no recorded latency of this variant"
        return [comparisons.cannot_tell("p50", why)], []
    settings = LatencySettings(
        mode="table", batch_sizes=gating.settings.batch_sizes, threads=threads_of(gating.settings)
    )
    candidate = Candidate(
        side.name,
        side.now.artifact,
        side.now.runner,
        {**side.now.options, "threads": threads_of(gating.settings)},
    )
    recipe = gating.made.plan.recipe
    with quiet.alone(STEP, gating.observer):
        measured = latency.measure(
            [candidate],
            side.name,
            recipe.inputs,
            gating.made.feeds,
            settings,
            gating.logs,
            recipe.seed,
            gating.observer,
        )
    for reason in measured.failures.values():
        return [comparisons.cannot_tell("p50", reason)], []
    recorded = {row.batch_size: row for row in then.on_host}
    found = []
    bar = gating.settings.p50
    for row in latency.to_results(measured)[side.name]:
        old = recorded.get(row.batch_size) if row.region == "host" else None
        if old is None or bar is None:
            continue
        if old.threads != row.threads:
            why = f"recorded with {old.threads} threads, measured with {row.threads}"
            found.append(comparisons.cannot_tell("p50", why))
            continue
        found.append(comparisons.recorded(row.batch_size, old.p50_ms, row.p50_ms, bar.limit))
    return found, [_MARK]
