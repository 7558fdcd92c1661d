"""What a plan file may say: the promise, the traffic, the machines, and what is fixed already."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from optcli.settings import Settings
from optcli.settings.references import RecipePath

Share = Annotated[float, Field(ge=0, le=1)]
Milliseconds = Annotated[float, Field(ge=0)]
_DAY_S = 86_400.0


class PromiseSettings(Settings):
    """The promise: percentiles of the latency that a request sees, and the share that may be lost."""

    p50_ms: float | None = Field(None, gt=0, description="half of the requests take at most so long")
    p95_ms: float | None = Field(None, gt=0, description="95 of 100 requests take at most so long")
    p99_ms: float | None = Field(None, gt=0, description="99 of 100 requests take at most so long")
    error_budget: float = Field(
        0.001, ge=0, lt=1, description="share of the requests that may be dropped"
    )

    @property
    def limits_ms(self) -> dict[float, float]:
        """Milliseconds by quantile, of what is promised."""
        limits = {0.5: self.p50_ms, 0.95: self.p95_ms, 0.99: self.p99_ms}
        return {q: limit for q, limit in limits.items() if limit is not None}


class OverheadSettings(Settings):
    """What a request takes before and after the model: decoding, network, drawing boxes."""

    before_ms: Milliseconds = Field(0.0, description="milliseconds before the model")
    after_ms: Milliseconds = Field(0.0, description="milliseconds after the model")
    occupies_worker: bool = Field(
        False,
        description="true: it runs in the model's worker, once for each batch, and lowers the capacity",
    )


class LevelSettings(Settings):
    """One level of the traffic."""

    rate_per_s: float = Field(gt=0, description="requests a second")
    seconds: float = Field(gt=0, description="how long it lasts")


class CameraSettings(Settings):
    """Cameras, each with a clock of its own."""

    count: int = Field(ge=1, le=100_000, description="number of cameras")
    frames_per_s: float = Field(gt=0, description="frames a second of one camera")
    stride: int = Field(1, ge=1, description="every so manieth frame goes to the model")
    jitter_ms: Milliseconds = Field(
        0.0, description="each frame comes up to so much earlier or later than the clock says"
    )


class CascadeSettings(Settings):
    """A heavy model behind the planned one, for a share of the requests."""

    curve: str = Field(description="its curve t(B), written as `curve`")
    share: float = Field(gt=0, lt=1, description="share of the requests that go on to it")


class PlanSettings(Settings):
    """A plan file: the curve of a model, the traffic, the promise, and what is fixed already.

    The curve is named by `curve`, or by `report` and `variant`: the sweep of a build. A key that a
    preset has too replaces it.
    """

    version: Literal[1] = Field(1, description="of this form of a plan file")
    name: str = Field("plan", min_length=1, max_length=100, description="of the plan")
    about: str | None = Field(None, description="what the plan is for, in words")
    preset: str | None = Field(None, description="targets that people name in practice, by name")
    curve: str | None = Field(
        None, description="t(B) as text: `1:25ms,2:27ms,4:34ms,8:48ms`, `6ms+4ms*b` or `12ms`"
    )
    report: RecipePath | None = Field(
        None, description="report.json of a build, or its folder: the curve is what it measured"
    )
    variant: str | None = Field(None, description="of the report; default: the recommended one")
    rate_per_s: Annotated[float, Field(gt=0)] | tuple[LevelSettings, ...] | None = Field(
        None,
        description="requests a second, or levels; default with `instances`: as many as these carry",
    )
    peak_factor: float = Field(
        1.0, ge=1, description="the peak over the mean rate; the peak is planned for"
    )
    arrivals: str = Field(
        "poisson",
        description="`poisson`, `constant`, `gamma:CV2`, `bursts:BURST_PER_S,BASE,BURST` or "
        "`trace:FILE` with one time of arrival in seconds a line",
    )
    slo: PromiseSettings | None = Field(None, description="the promise")
    freshness_s: float | None = Field(
        None, gt=0, description="results may wait so many seconds; with `slo`, a part of them"
    )
    overhead: OverheadSettings = Field(OverheadSettings(), description="beside the model")
    headroom: float = Field(0.2, ge=0, le=10, description="share of traffic above the rate kept free")
    utilisation: float = Field(
        0.7, gt=0, le=1, description="largest load with full batches (rho); at most 0.8 is wise"
    )
    semantics: Literal["oldest-age", "sealed"] = Field(
        "oldest-age",
        description="when a batch is sent: `oldest-age` as Triton does, `sealed` as Ray Serve does",
    )
    concurrency: int = Field(1, ge=1, le=1024, description="calls in parallel inside an instance")
    batch: int | None = Field(None, ge=1, le=4096, description="fixes the largest batch")
    wait_ms: float | None = Field(None, ge=0, description="fixes the longest wait for a batch")
    instances: int | None = Field(None, ge=1, le=10_000, description="fixes the number of instances")
    largest_batch: int = Field(64, ge=1, le=4096, description="no larger batch is tried")
    instances_per_machine: int | None = Field(
        None, ge=1, description="instances on one machine; default: what memory allows, else 1"
    )
    instance_memory_bytes: int | None = Field(None, gt=0, description="memory of one instance")
    machine_memory_bytes: int | None = Field(None, gt=0, description="memory of one machine")
    price_per_hour: float | None = Field(None, ge=0, description="of one machine, in any currency")
    watts: float | None = Field(None, ge=0, description="of one machine while it computes")
    idle_watts: float | None = Field(
        None, ge=0, description="of one machine that waits; default: the same"
    )
    cold_start_s: float | None = Field(
        None, ge=0, description="seconds until a new instance answers, for autoscaling; default: 0"
    )
    cameras: CameraSettings | None = Field(None, description="in place of `rate_per_s`")
    cache_hit_rate: float = Field(
        0.0, ge=0, lt=1, description="share of the requests that a prediction cache answers"
    )
    priorities: dict[str, Annotated[float, Field(gt=0, le=1)]] = Field(
        default_factory=dict, description="share of the traffic by priority, the most urgent first"
    )
    cascade: CascadeSettings | None = Field(None, description="a heavy model for some requests")
    on_full: Literal["drop-oldest", "reject-newest", "deadline"] = Field(
        "drop-oldest", description="what a full queue does, or `deadline`: drop what comes too late"
    )
    seed: int = Field(
        0, ge=0, le=2**31 - 1, description="of the simulation; the same gives the same plan"
    )

    @model_validator(mode="after")
    def _one_curve(self) -> Self:
        if self.curve is not None and self.report is not None:
            raise ValueError("found curve beside report, wanted one of them")
        return self

    @model_validator(mode="after")
    def _one_rate(self) -> Self:
        if self.cameras is not None and self.rate_per_s is not None:
            raise ValueError("found cameras beside rate_per_s, wanted one of them")
        if self.rate_per_s == ():
            raise ValueError("found no level in rate_per_s, wanted at least one")
        if isinstance(self.rate_per_s, tuple) and self.arrivals != "poisson":
            raise ValueError(f"found levels of rate_per_s beside arrivals {self.arrivals}")
        if self.cameras is not None and self.arrivals != "poisson":
            raise ValueError(f"found cameras beside arrivals {self.arrivals}, wanted one of them")
        return self

    @model_validator(mode="after")
    def _shares_make_one(self) -> Self:
        total = sum(self.priorities.values())
        if self.priorities and abs(total - 1) > 1e-6:
            raise ValueError(f"found shares of priorities that make {total:g}, wanted 1")
        few = self.instances is not None and self.instances < len(self.priorities)
        if few and self.semantics == "sealed":
            raise ValueError(
                f"found instances {self.instances} beside {len(self.priorities)} priorities, wanted one"
                " for each: sealed batches have no queue that they could share"
            )
        return self

    @model_validator(mode="after")
    def _memory_is_enough(self) -> Self:
        instance, machine = self.instance_memory_bytes, self.machine_memory_bytes
        if instance is None or machine is None:
            return self
        fit = machine // instance
        if fit < (self.instances_per_machine or 1):
            raise ValueError(
                f"found {instance} bytes for an instance beside {machine} of a machine: {fit} fit,"
                f" wanted {self.instances_per_machine or 1}"
            )
        return self

    @property
    def promised(self) -> bool:
        """Whether any percentile is promised."""
        return self.slo is not None and bool(self.slo.limits_ms)

    @property
    def on_one_machine(self) -> int:
        """Instances on one machine."""
        if self.instances_per_machine is not None:
            return self.instances_per_machine
        if self.instance_memory_bytes is None or self.machine_memory_bytes is None:
            return 1
        return self.machine_memory_bytes // self.instance_memory_bytes
