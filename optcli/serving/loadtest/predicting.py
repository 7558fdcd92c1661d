"""What the simulation says of a rate: by the plan's curve, and by the one that was calibrated."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from optcli.errors import counted
from optcli.measure.queueing.arrivals import Process
from optcli.measure.queueing.batching import Batching, Overhead
from optcli.measure.queueing.choice import most_carried, predict
from optcli.measure.queueing.curve import Curve
from optcli.measure.queueing.demand import Demand, Promise
from optcli.measure.queueing.formulas import fewest_wait_sealed_ms, load
from optcli.results.loadtest import (
    Calibration,
    LoadNote,
    Predicted,
    Served,
)
from optcli.results.plan import Plan
from optcli.results.statistics import monotone
from optcli.serving.loadtest.records import QUANTILES
from optcli.serving.loadtest.verdicts import LoadTerms

# What is predicted of the requests of a process.
PredictsOf = Callable[[Process], Sequence[Predicted]]
# Where nothing is promised.
_ANY = Promise({0.5: sys.float_info.max})
# Shares of the highest rate of a test at which the predicted curve is drawn.
DRAWN_AT = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05)


@dataclass(frozen=True, eq=False)
class PredictionModel:
    """A curve and an overhead that the simulation starts from, and where they are from.

    With its `seed` the simulation is the plan's own, so that both say the same of the same server.
    """

    by: Literal["plan", "calibration"]
    curve: Curve
    overhead: Overhead
    seed: int = 0


def of_plan(plan: Plan, ingresses: int | None = None) -> PredictionModel:
    """The plan's own curve and overhead; `ingresses` processes take requests, default: as planned."""
    known = plan.curve
    padded = [(first, size) for size, first in known.padded_from.items()]
    if known.samples_ms:
        curve = Curve.from_samples(known.samples_ms).stepped(known.between_ms, padded)
    elif known.points_ms:
        curve = Curve.from_points(known.points_ms).stepped(known.between_ms, padded)
    else:
        curve = Curve.from_line(known.fixed_ms or 0.0, known.per_image_ms or 0.0)
    of_server = plan.overhead
    overhead = Overhead(
        of_server.before_ms,
        of_server.after_ms,
        of_server.ingress_ms,
        of_server.ingress_cv2,
        ingresses or ingresses_of(plan),
    )
    return PredictionModel("plan", curve, overhead, plan.seed)


def ingresses_of(plan: Plan | None) -> int:
    """How many processes take requests where the plan is carried out: one on each machine."""
    return 1 if plan is None or plan.recommended is None else plan.recommended.ingresses


def of_calibration(calibration: Calibration, ingresses: int = 1) -> PredictionModel:
    """What was found through the running server, of which `ingresses` processes take requests.

    Means of few calls scatter: where a larger batch seems to take less, both are taken as alike. What a
    replica does beside the model for each call delays the model where both have the same processors;
    else it goes on meanwhile, and requests queue for it or for the ingress, whichever takes longer.
    """
    ingress_ms, replica_ms = calibration.ingress_ms, calibration.replica_ms
    sizes = sorted(calibration.points_ms)
    times = monotone([calibration.points_ms[size] for size in sizes])
    beside_ms = replica_ms if calibration.own_processors else 0.0
    call_ms = {size: ms + size * beside_ms for size, ms in zip(sizes, times, strict=True)}
    in_turn_ms = ingress_ms if calibration.own_processors else max(ingress_ms, replica_ms)
    overhead = Overhead(
        after_ms=max(0.0, calibration.overhead_ms - in_turn_ms - beside_ms),
        ingress_ms=in_turn_ms,
        ingress_cv2=calibration.ingress_cv2,
        ingresses=ingresses,
    )
    return PredictionModel("calibration", Curve.from_points(call_ms), overhead)


def plan_keys(calibration: Calibration) -> dict[str, Any]:
    """What was found through the running server, as keys of a plan file."""
    model = of_calibration(calibration)
    points = model.curve.points
    text = ",".join(f"{size}:{ms:.6g}ms" for size, ms in points)
    overhead = model.overhead
    return {
        "curve": text if len(points) > 1 else f"{points[0][1]:.6g}ms",
        "overhead": {
            "after_ms": overhead.after_ms,
            "ingress_ms": overhead.ingress_ms,
            "ingress_cv2": overhead.ingress_cv2,
        },
    }


def batching_of(served: Served, concurrency: int = 1) -> Batching | None:
    """How the server batches, as the simulation takes it; None where it is not known."""
    if served.batch is None or served.instances is None or served.semantics is None:
        return None
    return Batching(
        batch=served.batch,
        wait_ms=served.wait_ms or 0.0,
        instances=served.instances,
        concurrency=concurrency,
        semantics=served.semantics,
    )


def predicted(model: PredictionModel, batching: Batching, process: Process) -> Predicted:
    """Percentiles at the rate of a process; none where the queue grows or the curve ends before."""
    demand = Demand(process, _ANY, model.overhead, seed=model.seed)
    rho = load(
        process.rate_per_s,
        model.curve,
        batching.batch,
        batching.workers,
        ingress_ms=demand.ingress_ms,
    )
    runs = predict(model.curve, demand, batching)
    known = {f"{name}_ms": getattr(runs, f"{name}_ms").value for name in QUANTILES}
    return Predicted(
        by=model.by,
        utilisation=rho,
        mean_batch=runs.mean_batch.value,
        grows=runs.grows,
        **{name: None if runs.grows else value for name, value in known.items()},
    )


def highest(model: PredictionModel, batching: Batching, process: Process, terms: LoadTerms) -> float:
    """The highest rate at which the promise is kept: the number that the plan says as well."""
    promise = Promise({QUANTILES[name]: limit for name, limit in terms.limits_ms.items()})
    demand = Demand(process, promise, model.overhead, seed=model.seed)
    return most_carried(model.curve, demand, batching)


def unstable(model: PredictionModel, batching: Batching, rate_per_s: float) -> LoadNote | None:
    """Says where the wait is too short for sealed batches to carry the rate.

    The queue then grows without bound.
    """
    if batching.semantics != "sealed" or batching.batch == 1:
        return None
    least = fewest_wait_sealed_ms(
        rate_per_s,
        model.curve,
        batching.instances,
        concurrency=batching.concurrency,
    )
    if batching.wait_ms >= least:
        return None
    figures = {"wait_ms": batching.wait_ms, "rate_per_s": rate_per_s, "by": model.by}
    if math.isinf(least):
        text = (
            f"{counted(batching.instances, 'instance')} cannot serve {rate_per_s:g} requests a second,"
            " whatever the wait"
        )
    else:
        figures["least_wait_ms"] = least
        text = (
            f"the wait of {batching.wait_ms:g} ms is too short for batches that are closed by time at"
            f" {rate_per_s:g} requests a second: under {round(least, 3):g} ms the queue grows without"
            " bound"
        )
    return LoadNote(kind="unstable", figures=figures, text=f"{text} (by the {model.by})")
