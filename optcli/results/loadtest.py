"""What `optcli loadtest` found. The JSON forms of `LoadTest` and `Drift` are public.

Each has a schema version of its own. Times are in milliseconds, rates in requests a second, shares are
fractions. None: cannot be said. A row is one input of the model without its batch, such as an image.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from optcli.results.outcomes import Estimate, Outcome, Result, Verdict
from optcli.results.plan import Semantics

LOADTEST_SCHEMA = 1

Percentile = Literal["p50", "p95", "p99"]
Encoding = Literal["binary", "json", "image"]
Rule = Literal["class", "equal", "near"]


class LoadWindow(Result):
    """One window of a load: the requests that were planned in it, and their answers.

    Percentiles are over the requests that were answered or timed out, counted from the planned time. A
    request that timed out counts with the timeout. Percentiles are None where there is no such request.
    """

    seconds: float
    requests: int
    answered: int
    failed: int
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None


class ServerFigures(Result):
    """What the server's own metrics say of the windows: differences between their end and begin.

    `stages_ms` are mean milliseconds by stage (parse, queue, batch_wait, compute, post). `batch_rows`
    is the mean number of rows in a call of the model, `batch_fill` the same over the largest batch.
    `compute_ms` are mean milliseconds by the number of rows in a call, `calls` how many there were.
    `cpu_cores` is processor time over time, by process.
    """

    stages_ms: dict[str, float] = Field(default_factory=dict)
    batch_rows: float | None = None
    batch_fill: float | None = None
    compute_ms: dict[int, float] = Field(default_factory=dict)
    calls: dict[int, int] = Field(default_factory=dict)
    cpu_cores: dict[str, float] = Field(default_factory=dict)
    cache_hit_share: float | None = None


class ClientFigures(Result):
    """How the client kept up: how late it sent (`lateness_p99_ms`), and how late it may at most.

    `saturated`: the client sent too late for its latencies to be the server's. `cpu_cores` is its
    processor time over time, `cpus` the processors it may run on, `bytes_sent` and `bytes_received`
    the mean size of a request and of an answer.
    """

    lateness_p99_ms: float
    lateness_limit_ms: float
    saturated: bool
    cpu_cores: float
    cpus: tuple[int, ...] = ()
    bytes_sent: float
    bytes_received: float
    most_in_flight: int


class Predicted(Result):
    """What the simulation says of the same rate, by the plan's curve or by the calibrated one.

    `grows`: the simulated queue grows without bound, so that there are no percentiles.
    """

    by: Literal["plan", "calibration"]
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    utilisation: float
    mean_batch: float | None = None
    grows: bool = False


class LoadPoint(Result):
    """One rate of the load test.

    `rate_per_s` was planned, `sent_per_s` is what the client really sent in the windows, and
    `answered_per_s` what the server answered. `good_per_s` (goodput) counts the answers that were right
    and, where a latency is promised, within the tightest promised limit of the highest percentile.
    Percentiles have 95 % intervals over windows. `steady`: the largest p95 of a window is at most 1.10
    times the smallest. `grows`: p95 rose from window to window to at least 1.5 times, as a queue that
    grows without bound does. `short`: windows that are too few or too short to accept anything.
    `breach`: the service level is broken by the rule of the windows. `failures` counts requests that
    were not answered by cause, `failed_share` is their share of all. `checked` answers were compared
    with the expected ones, `wrong` of them lie too far away.
    """

    rate_per_s: float
    purpose: Literal["rate", "ramp", "bisect", "confirm", "calibrate"]
    encoding: Encoding
    seconds: float
    requests: int
    sent_per_s: float
    answered_per_s: float
    good_per_s: float
    p50_ms: Estimate | None = None
    p95_ms: Estimate | None = None
    p99_ms: Estimate | None = None
    windows: tuple[LoadWindow, ...]
    steady: bool
    grows: bool
    short: bool
    breach: bool
    failed_share: float
    failures: dict[str, int] = Field(default_factory=dict)
    checked: int
    wrong: int
    wrong_example: str | None = None
    client: ClientFigures
    server: ServerFigures | None = None
    predicted: tuple[Predicted, ...] = ()
    outcome: Outcome
    reason: str


class LimitFound(Result):
    """The highest rate that keeps the promise.

    `rate_per_s` is the highest that was `confirmed` over a minute, else the highest that was tried and
    did not break it (None: all broke it), `broken_per_s` the lowest that broke it. `predicted_per_s`
    are the same rate by the plan and by the calibration.
    """

    rate_per_s: float | None
    broken_per_s: float | None
    confirmed: bool
    predicted_per_s: dict[str, float] = Field(default_factory=dict)


class Calibration(Result):
    """The curve t(B) and the overhead, as found through the running server.

    `points_ms` are mean milliseconds of a call by its rows, `calls` how many were seen of each size.
    `overhead_ms` is what a lone request takes beside waiting for a batch and computing. Part of it is
    work for which requests queue. `ingress_ms` is for how long the ingress works for a request: its
    processor time. Where the ingress has one processor, the client's time counts if it runs there too,
    and what goes on without requests leaves less of it. `replica_ms` is the processor time of a request
    in a replica beside the model. `ingress_cv2` is the squared coefficient of variation of
    `ingress_ms` with which the simulation gives the p95 of the calibration's two loads, on the
    geometric mean.
    `own_processors` says that the replicas had no more processors than the model takes, so that this
    work delays the model.
    """

    schema_version: int = Field(LOADTEST_SCHEMA, alias="schema")
    model: str
    measured: str
    points_ms: dict[Annotated[int, Field(ge=1)], Annotated[float, Field(gt=0, allow_inf_nan=False)]]
    calls: dict[int, int]
    overhead_ms: float
    ingress_ms: float = 0.0
    ingress_cv2: float = 0.0
    replica_ms: float = 0.0
    own_processors: bool = False
    cpus: tuple[int, ...] = ()


class Served(Result):
    """What the load went to.

    `batch`, `wait_ms` and `instances` are how it batches, by the bundle or the plan; None where neither
    says so. `own` says that the load test started the server itself; `cpus` are its processors, without
    `model_cpus`, which the replicas of the model have for themselves (empty: none of their own).
    """

    url: str
    folder: str | None = None
    model: str
    platform: str = ""
    batch: int | None = None
    wait_ms: float | None = None
    instances: int | None = None
    semantics: Semantics | None = None
    own: bool = False
    cpus: tuple[int, ...] = ()
    model_cpus: tuple[int, ...] = ()
    processors: int = 0


class LoadNote(Result):
    """A warning or an advice about a load test; `kind` tells it apart, `text` is its sentence."""

    kind: str
    figures: dict[str, Any] = Field(default_factory=dict)
    text: str


class CanarySide(Result):
    """One of two servers under the same traffic; as `LoadPoint` where the names are the same."""

    target: str
    requests: int
    failed: int
    failures: dict[str, int] = Field(default_factory=dict)
    checked: int
    wrong: int
    p50_ms: Estimate | None = None
    p95_ms: Estimate | None = None
    p99_ms: Estimate | None = None
    lateness_p99_ms: float


class Agreement(Result):
    """On how many samples two servers say the same, with a 95 % interval (Clopper and Pearson).

    `largest_difference` is that of floating-point outputs, as a share of the largest magnitude. `rules`
    say when an output counts as the same: `class` where the same class has the largest score, `equal`
    where all numbers are equal, `near` within 5 % of the largest magnitude. `missing` are outputs that
    only the first server gives, `added` those that only the second gives; they are not compared.
    """

    samples: int
    agreeing: int
    share: Estimate
    largest_difference: float
    rules: dict[str, Rule] = Field(default_factory=dict)
    missing: tuple[str, ...] = ()
    added: tuple[str, ...] = ()


class Canary(Result):
    """Two servers under the same traffic, of which the second gets a `share`, and what to do with it.

    `decision` is promote where all verdicts accept, reject where one rejects, else hold. `slower` is
    the second server's p95 over the first's on the same requests.
    """

    schema_version: int = Field(LOADTEST_SCHEMA, alias="schema")
    started: str
    finished: str
    decision: Literal["promote", "hold", "reject"]
    outcome: Outcome
    sentence: str
    first: CanarySide
    second: CanarySide
    share: float
    rate_per_s: float
    agreement: Agreement
    slower: Estimate | None = None
    slo_ms: dict[str, float]
    payload: str
    verdicts: tuple[Verdict, ...]


class LoadTest(Result):
    """A server under load, held to its promise.

    `outcome` is that of the blocking verdicts: reject before inconclusive before accept. `slo_ms` is
    the promise by percentile, `error_budget` the share of requests that may fail. `promised_per_s` is
    the rate of the plan. `payload` says where the inputs are from. `curve_ms` has, by what predicted
    them, points (rate, predicted percentile `drawn`) of the operating curve.
    """

    schema_version: int = Field(LOADTEST_SCHEMA, alias="schema")
    name: str
    started: str
    finished: str
    outcome: Outcome
    sentence: str
    verdicts: tuple[Verdict, ...]
    served: Served
    slo_ms: dict[str, float]
    error_budget: float
    promised_per_s: float | None = None
    arrivals: str
    seed: int
    payload: str
    points: tuple[LoadPoint, ...]
    limit: LimitFound | None = None
    calibration: Calibration | None = None
    drawn: Percentile = "p95"
    curve_ms: dict[str, tuple[tuple[float, float | None], ...]] = Field(default_factory=dict)
    notes: tuple[LoadNote, ...] = ()


DRIFT_SCHEMA = 1

Statistic = Literal["mean", "std", "min", "max", "size"]


# From a server that may be anybody's: nothing that a terminal obeys.
Line = Annotated[str, Field(max_length=4096, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]


class DriftStatistic(Result):
    """One statistic of the rows, in the reference and in what the server saw.

    `channel` is the channel or feature; None: of the whole row. `size` is the number of values.
    `reference`, `reference_sd` and `seen` are mean and standard deviation over rows. `shift_sd` is
    their difference in standard deviations of the reference; None where that has none. `distance` is
    that of Kolmogorov and Smirnov, from 0 to 1, and `p` its p value, corrected for the number of tests
    (Holm). `drifted`: beyond chance and large enough.
    """

    statistic: Statistic
    channel: int | None = None
    reference: float
    reference_sd: float
    seen: float
    shift_sd: float | None = None
    distance: float
    p: float
    drifted: bool


class DriftChannel(Result):
    """The values of one channel: mean, smallest and largest, of the reference and as seen.

    `reference_std` and `seen_std` are the mean standard deviations within a row, None for features.
    `outside` is the share of the seen values that lie beyond the reference's smallest and largest.
    """

    channel: int
    reference_mean: float
    seen_mean: float
    reference_std: float | None = None
    seen_std: float | None = None
    reference_range: tuple[float, float]
    seen_range: tuple[float, float]
    outside: float


class DriftInput(Result):
    """One input of the model: reject where it drifted, inconclusive where the rows are too few.

    `rows` and `reference_rows` are effective numbers: so many different rows, each drawn with the same
    probability, would say as much. `detectable` is the smallest distance that these rows would have
    shown. `tests` counts the statistics that were tested, `drifted` those that drifted, the farthest
    first.
    """

    name: str
    outcome: Outcome
    reason: str
    rows: float
    reference_rows: float
    detectable: float | None
    tests: int
    drifted: int
    channels: tuple[DriftChannel, ...] = ()
    statistics: tuple[DriftStatistic, ...] = ()


class DriftReference(Result):
    """What the inputs are compared with: `samples` of the `of` samples of a role of the recipe."""

    role: Literal["calibration", "training", "validation", "evaluation"]
    source: Line
    samples: int
    of: int


class Drift(Result):
    """The inputs that a server saw, compared with the data that its model was calibrated with.

    `seen` rows came from `begun` to `written`, and statistics of `kept` of them, drawn at random, are
    compared. `alpha` is the probability that anything drifted by chance alone.
    """

    schema_version: int = Field(DRIFT_SCHEMA, alias="schema")
    model: str
    target: str
    outcome: Outcome
    sentence: str
    started: str
    begun: str
    written: str
    seen: int
    kept: int
    reference: DriftReference
    alpha: float
    inputs: tuple[DriftInput, ...]
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()
