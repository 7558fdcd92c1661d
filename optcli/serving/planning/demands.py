"""What a plan file asks of the queue, and the rate that fixed instances carry."""

from __future__ import annotations

import math

from optcli.measure.queueing import Curve, Overhead, Poisson, Promise, formulas
from optcli.measure.queueing.demand import Demand, offered_batches
from optcli.serving.planning.settings import PlanSettings
from optcli.serving.planning.traffic import Traffic


def demand_of(settings: PlanSettings, traffic: Traffic) -> Demand:
    """What is asked of the queue; the ingress has as many processes as the rate takes, or as are given.

    Requests that a cache answers pass the ingress as well: their work counts as that of the others.
    """
    assert settings.slo is not None
    beside = settings.overhead_here
    ingress_ms = beside.ingress_ms / (1 - settings.cache_hit_rate)
    busy = traffic.planned.rate_per_s * (1 + settings.headroom) * ingress_ms / 1000
    needed = max(1, math.ceil(busy / settings.utilisation - 1e-9)) if settings.server.scales else 1
    return Demand(
        process=traffic.planned,
        promise=Promise(settings.slo.limits_ms),
        overhead=Overhead(
            beside.before_ms,
            beside.after_ms,
            ingress_ms,
            beside.ingress_cv2,
            beside.ingresses or needed,
        ),
        headroom=settings.headroom,
        utilisation=settings.utilisation,
        semantics=settings.semantics,
        concurrency=settings.concurrency,
        batch=settings.batch if settings.server.batches else 1,
        waits_ms=settings.waits_ms,
        instances=settings.instances,
        largest_batch=settings.largest_batch,
        seed=settings.seed,
    )


def carried_per_s(settings: PlanSettings, curve: Curve) -> float | None:
    """The rate at the model that fixed instances carry at the utilisation cap; None: one is named."""
    if settings.rate_per_s is not None or settings.instances is None:
        return None
    demand = demand_of(settings, Traffic(1.0, Poisson(1.0)))
    # An ingress that can have more processes gets them.
    fixed = settings.overhead.ingresses is not None or not settings.server.scales
    batches = offered_batches(curve, demand) or [(curve.sizes or (1,))[0]]
    workers = settings.instances * settings.concurrency
    return settings.utilisation * max(
        formulas.capacity_per_s(curve, batch, workers, ingress_ms=demand.ingress_ms if fixed else 0.0)
        for batch in batches
    )


def asked_for_per_s(settings: PlanSettings, at_the_model: float | None) -> float | None:
    """The rate that brings one to the model, without what a cache answers."""
    if at_the_model is None:
        return None
    return at_the_model / (1 - settings.cache_hit_rate)
