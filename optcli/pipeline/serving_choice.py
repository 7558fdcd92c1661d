"""How to serve at the rate that a recipe promises: the choice of `optcli plan`, in short."""

from __future__ import annotations

import logging
from pathlib import Path

from optcli.errors import OptcliError
from optcli.recipe import Recipe
from optcli.results import Report
from optcli.results.serving import ServingChoice

# A third of what `optcli plan` simulates: the whole choice takes a second or so.
_REQUESTS = 10_000


def chosen(recipe: Recipe, report: Report, folder: Path) -> ServingChoice | None:
    """The configuration for the recommended variant, else the baseline; raw samples are in `folder`.

    None where the recipe names no rate or bounds no percentile, where nothing was measured, and where
    the choice fails for whatever reason: a build does not depend on it.
    """
    slo = recipe.slo
    if slo is None or slo.rate_per_s is None:
        return None
    quantiles = {name: int(name[1:-3]) / 100 for name in slo.percentiles_ms}
    limits_ms = {quantiles[name]: limit for name, limit in slo.percentiles_ms.items()}
    name = report.recommended or report.baseline
    if not limits_ms or name not in report.variants or not report.variants[name].on_host:
        return None
    try:
        return _choice(report, name, folder, slo.rate_per_s, limits_ms, recipe.seed)
    except (OptcliError, ArithmeticError, LookupError, ValueError) as error:
        logging.getLogger(__name__).info("no plan for the report", exc_info=error)
        return None


def _choice(
    report: Report, name: str, folder: Path, rate_per_s: float, limits_ms: dict[float, float], seed: int
) -> ServingChoice:
    from optcli.latency.measured_curve import curve_of
    from optcli.queueing import Poisson, Promise
    from optcli.queueing.choice import choose, without_headroom
    from optcli.queueing.demand import Demand

    known = curve_of(report, name, folder / "report.json")
    slo_ms = {f"p{100 * q:g}": limit for q, limit in limits_ms.items()}
    short = ServingChoice(variant=name, rate_per_s=rate_per_s, slo_ms=slo_ms, kept=False)
    if known.unfit:
        return short.model_copy(update={"fit": False})
    demand = Demand(Poisson(rate_per_s), Promise(limits_ms), requests=_REQUESTS, seed=seed)
    choice = choose(known.curve, demand)
    best, prediction = choice.best, choice.prediction
    if best is None or prediction is None:
        return short
    figures = {"p50": prediction.p50_ms, "p95": prediction.p95_ms, "p99": prediction.p99_ms}
    return short.model_copy(
        update={
            "kept": True,
            "batch": best.batching.batch,
            "wait_ms": best.batching.wait_ms,
            "instances": best.batching.instances,
            "instances_without_headroom": without_headroom(known.curve, demand, best.batching),
            "figures_ms": {name: figures[name].value for name in slo_ms},
            "padded_from": {
                size: first for first, size in known.curve.padded if first <= best.batching.batch
            },
        }
    )
