"""What `optcli plan` found: the JSON form of `Plan` is public, with a schema version of its own.

Times are in milliseconds, rates in requests a second, shares are fractions. None: cannot be said.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from optcli.results.outcomes import Result

PLAN_SCHEMA = 2

Semantics = Literal["oldest-age", "sealed"]
Mode = Literal["batch", "real-time", "hybrid"]
Interval = tuple[float, float]


class PlanCurve(Result):
    """The curve t(B) that the plan rests on.

    `points_ms` are milliseconds by batch size; empty where only a line is known. `source` says where
    it is from. `samples_ms` are equally likely milliseconds of single calls by batch size, which the
    simulation draws; empty where none were measured.
    `largest_within_slo` is the largest known batch size whose call fits into the tightest limit, with
    the overhead. `compiled` are the batch sizes that
    the variant was compiled for, empty where one form computes all. `padded_from` has by batch size the
    smallest one that is padded to it, and takes as long. `between_ms` are milliseconds of further batch
    sizes, which follow from these forms; between all of them the plan interpolates.
    """

    source: str
    points_ms: dict[int, float] = Field(default_factory=dict)
    fixed_ms: float | None = None
    per_image_ms: float | None = None
    largest_residual: float | None = None
    samples_ms: dict[int, tuple[float, ...]] = Field(default_factory=dict)
    largest_within_slo: int | None = None
    compiled: tuple[int, ...] = ()
    padded_from: dict[int, int] = Field(default_factory=dict)
    between_ms: dict[int, float] = Field(default_factory=dict)


class ServerOverhead(Result):
    """The work beside the model that the figures are for: as asked, else as is known of the server."""

    before_ms: float = 0.0
    after_ms: float = 0.0
    ingress_ms: float = 0.0
    ingress_cv2: float = 0.0


class Configuration(Result):
    """How to serve, and what the simulation predicts for it at the planned rate.

    `batch` is the largest batch, `wait_ms` the longest wait for it. `instances` are with headroom.
    `utilisation` is the rate over the
    capacity with full batches (rho), `busy` the share of time in which workers compute. Intervals of
    p50, p95 and p99 are at 95 % over the seeds of the simulation. `max_rate_per_s` is the highest rate
    that keeps the promise, `capacity_per_s` that of full batches all the time, and
    `rate_at_utilisation_per_s` the share of it that the utilisation cap allows. `sum_ms` is the usual
    sum wait + t(batch) + overhead, which leaves the queue out.
    `max_in_flight` is the most requests, waiting and running, that are let in, and `queue_cap` how many
    of them wait: a further one is refused. `timeout_ms`: a request that has waited longer is too late.
    All three are so wide that no more than the error budget is refused at the planned rate; the
    percentiles are without refusals. Of `all_in_time` requests in the server all keep the promise,
    which a promise of p95 does not ask for.
    `ingresses` is the number of processes that take requests, one on each machine. Where their work is
    known, `utilisation` is the larger load of the instances and of these, and `capacity_per_s` at most
    what they pass. Of a priority with instances of its own, all figures are of that priority.
    `least_wait_ms` is the wait below which the queue of a sealed batcher grows without bound.
    `longest_wait_ms` is the delay budget of the promise.
    """

    batch: int
    wait_ms: float
    instances: int
    concurrency: int
    machines: int
    instances_per_machine: int
    ingresses: int = 1
    semantics: Semantics
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    p50_interval_ms: Interval | None = None
    p95_interval_ms: Interval | None = None
    p99_interval_ms: Interval | None = None
    utilisation: float
    utilisation_with_headroom: float
    busy: float | None = None
    mean_batch: float | None = None
    max_rate_per_s: float
    capacity_per_s: float
    rate_at_utilisation_per_s: float
    sum_ms: float
    queue_cap: int | None = None
    timeout_ms: float | None = None
    max_in_flight: int | None = None
    all_in_time: int | None = None
    least_wait_ms: float | None = None
    longest_wait_ms: float | None = None
    cost_per_1000: float | None = None


class ModeAdvice(Result):
    """Batch, real-time or hybrid, and the two numbers that decided."""

    mode: Mode
    deciding: dict[str, float]
    reason: str


class PriorityLatency(Result):
    """Percentiles of the requests of one priority.

    Each is an application of its own, by `configuration`, simulated by itself. All are None where no
    configuration keeps the promise for it.
    """

    name: str
    share: float
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    configuration: Configuration | None = None


class PlanNote(Result):
    """What is to be known of a plan: `kind` says what it is about, `text` is its sentence."""

    kind: str
    figures: dict[str, Any] = Field(default_factory=dict)
    text: str


class BatchPoint(Result):
    """One batch size of the operating curve, at the recommended number of instances.

    `latency_ms` is the percentile `Plan.drawn`; None where the queue grows without bound. In a plan
    without a rate it is the call with the overhead, of one instance, and `kept` whether that is within
    the promise.
    """

    batch: int
    wait_ms: float
    call_ms: float
    latency_ms: float | None
    capacity_per_s: float
    kept: bool


class RatePoint(Result):
    """One rate of the operating curve, with the recommended configuration; as `BatchPoint`."""

    rate_per_s: float
    latency_ms: float | None
    utilisation: float


class WaitPoint(Result):
    """One of several waits that were asked for, with the batch size and the instances of the plan.

    Percentiles are None where the queue grows without bound. `max_rate_per_s` is the highest rate that
    keeps the promise.
    """

    wait_ms: float
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    mean_batch: float
    busy: float
    max_rate_per_s: float
    kept: bool


class Plan(Result):
    """From a promise to a serving configuration.

    `outcome` is `kept` where the recommended configuration keeps the promise with its intervals, and
    `not-kept` where no configuration does. It is `inconclusive` where the curve was measured on a busy
    machine. `target` is the server that the plan is for. With
    priorities in Ray Serve `recommended` is what all requests together would take, and `priorities`
    what is served.
    `rate_per_s` is the rate that was asked for. `planned_rate_per_s` is the rate that the model sees,
    and that the figures are for: with the peak factor, and without requests that a cache answers. Both
    are None where the question has no rate: then `recommended` is None, and `by_batch` has calls alone.
    `drawn` names the percentile that `by_batch` and `by_rate` have. `asked` is the whole plan file,
    with options.
    """

    schema_version: int = Field(PLAN_SCHEMA, alias="schema")
    name: str
    outcome: Literal["kept", "not-kept", "inconclusive"]
    sentence: str
    reason: str
    target: str = "triton"
    slo_ms: dict[str, float]
    rate_per_s: float | None
    planned_rate_per_s: float | None
    headroom: float
    utilisation: float
    seed: int
    curve: PlanCurve
    overhead: ServerOverhead = ServerOverhead()
    recommended: Configuration | None
    mode: ModeAdvice
    priorities: tuple[PriorityLatency, ...] = ()
    notes: tuple[PlanNote, ...] = ()
    drawn: Literal["p50", "p95", "p99"] = "p95"
    by_batch: tuple[BatchPoint, ...] = ()
    by_wait: tuple[WaitPoint, ...] = ()
    by_rate: tuple[RatePoint, ...] = ()
    asked: dict[str, Any] = Field(default_factory=dict)

    @property
    def planned_per_s(self) -> float:
        """The planned rate of a plan with a configuration, which always has one."""
        assert self.planned_rate_per_s is not None
        return self.planned_rate_per_s

    def of_priority(self, name: str) -> Plan:
        """The plan of one priority's application; this plan where it has none of the name."""
        one = next((each for each in self.priorities if each.name == name), None)
        if one is None:
            return self
        rate = one.share * self.planned_per_s
        changes = {"recommended": one.configuration, "planned_rate_per_s": rate, "priorities": ()}
        return self.model_copy(update=changes)
