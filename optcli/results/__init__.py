"""What a build found out, as plain data with a schema version.

The JSON form of `Report` is public: people's CI reads it. A value that could not be measured is
None with a flag that says why. New keys may come; a key that changes meaning changes `schema`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, ValidationError

from optcli.errors import ExitCode, UsageError, first_line
from optcli.results.flags import Flag
from optcli.results.outcomes import (
    Accuracy,
    Against,
    Estimate,
    Layers,
    Outcome,
    OutputError,
    Result,
    Verdict,
)
from optcli.results.pictures import Picture
from optcli.results.reading import record_of
from optcli.results.serving import ServingChoice
from optcli.results.tuning import Repair, Tuning

SCHEMA = 2

# `ExitCode` of a build that came to its end: `compare` ends as the report says, and others wrote some.
EndOfBuild = Annotated[int, Field(ge=0, le=ExitCode.INCONCLUSIVE)]
Status = Literal["built", "cached", "skipped", "failed"]


class Latency(Result):
    """Latency of one artifact in one runner at one batch size, in one region.

    `host` is a whole call: inputs copied in, computed, outputs copied out, by the clock. `device` is
    what the same calls computed for on a GPU, by its own events; there it is a row of its own.

    `samples` counts timed calls; the raw ones lie beside the report. A percentile is None where it
    needs more calls, and then has a flag `too-few-calls`. `speedup` is over the baseline at the
    same batch size. `cpu_ms` is processor time per call, of all threads. `first_ms` is the time of
    the first call at this batch size. `peak_memory_bytes` is the most memory that the process held,
    less that of the same process without runtime and model; `peak_gpu_memory_bytes` is the same on
    a GPU. `import_ms`, `load_ms`, `first_ms` and `warm_calls` (calls until it was steady) are
    medians over the `launches`; `load_interval_ms` and `memory_interval_bytes` hold the centre of
    load time and of peak memory over launches with 95 %. `rounds` counts the rounds of all
    launches. `spread` is the interquartile range over the median, without the part that different
    inputs explain. `waited` is the share of the time in which a thread was ready to run and had no
    processor, because other work or another machine on the host had it. `measured_at` is ISO 8601
    with its offset. `fit` says whether the machine was quiet enough for this row to decide
    anything: a row that is not fit has no speed-up, and neither has any row that would be compared
    with it. `over_parent` is the speed-up over the variant that has the same passes in the same
    order, except for the fewest missing ones. `over_fp32` is the speed-up over the fastest variant
    that computes the unchanged network in fp32. Each is None where the two variants were not
    measured side by side, or one of them was not fit.
    """

    batch_size: int
    region: Literal["host", "device"] = "host"
    threads: int
    samples: int
    p50_ms: Estimate
    p90_ms: Estimate | None = None
    p95_ms: Estimate | None = None
    p99_ms: Estimate | None = None
    mean_ms: float
    throughput_per_s: float
    speedup: Estimate | None = None
    over_parent: Against | None = None
    over_fp32: Against | None = None
    cpu_ms: float | None = None
    import_ms: float | None = None
    load_ms: float | None = None
    load_interval_ms: tuple[float, float] | None = None
    first_ms: float | None = None
    warm_calls: int | None = None
    peak_memory_bytes: int | None = None
    memory_interval_bytes: tuple[NonNegativeInt, NonNegativeInt] | None = None
    peak_gpu_memory_bytes: int | None = None
    launches: int = 1
    rounds: int | None = None
    spread: float | None = None
    waited: float | None = None
    measured_at: str
    device: str | None = None
    flags: tuple[Flag, ...] = ()
    fit: bool = True


class SweepPoint(Result):
    """Latency at one batch size of a sweep; `samples` counts the timed calls of all launches.

    `p99_ms` is None where there are too few of them, with a flag that says so. `spread` and `waited`
    mean what they mean in `Latency`. Plan and budget leave out a point that is not `fit`.
    `quantiles_ms` are the calls' milliseconds at evenly spaced probabilities from 0 to 1, from which
    `plan` draws. `padded_to` is the compiled batch size to which the runner
    padded the batches; None where it did not.
    """

    batch_size: int
    p50_ms: Estimate
    p99_ms: Estimate | None = None
    throughput_per_s: float
    samples: int
    quantiles_ms: tuple[float, ...] = ()
    peak_memory_bytes: int | None = None
    spread: float | None = None
    waited: float | None = None
    padded_to: int | None = None
    fit: bool = True
    flags: tuple[Flag, ...] = ()


class SweepFit(Result):
    """The line t(B) = fixed_ms + B * per_image_ms through the points of a sweep.

    `largest_residual` is the largest distance of a point from it, as a fraction of the point.
    `linear` is false where that is over 10 %, or nothing is fixed: the points then say more.
    """

    fixed_ms: Estimate
    per_image_ms: Estimate
    r_squared: float | None = None
    largest_residual: float
    linear: bool


class Budget(Result):
    """The largest batch size whose p99 keeps the service level, by the upper bound of its interval.

    `batch_size` is None where no size is known to keep it; `sentence` says why.
    """

    p99_ms: float
    batch_size: int | None = None
    throughput_per_s: float | None = None
    sentence: str


class Sweep(Result):
    """One artifact over batch sizes, alone on the machine, and why it went no further."""

    points: tuple[SweepPoint, ...] = ()
    fit: SweepFit | None = None
    budget: Budget | None = None
    stopped_because: str
    launches: int = 0
    threads: int | None = None
    measured_at: str | None = None


class Share(Result):
    """How near one batch size came to the machine's limit.

    `achieved_per_s` and `limit_per_s` are operations a second, at the median. The limit is the peak of
    `precision` with as many threads, or what memory allows, whichever `bound` names. `share` is their
    ratio; over 1 it is no success but a miscount, or a peak measured too low, and `flags` say so.
    `low` and `high` are the share at the ends of p50's interval; the limit is taken as it was measured.
    """

    batch_size: int
    precision: str
    bound: Literal["compute", "memory"]
    achieved_per_s: float
    limit_per_s: float
    share: float
    low: float | None = None
    high: float | None = None
    flags: tuple[Flag, ...] = ()


class Operations(Result):
    """What one image costs at least: operations (a multiply-accumulate is two) and bytes moved.

    Of convolutions and matrix products. Bytes are a lower bound: every weight once per call, inputs
    and outputs once per image; what passes between layers may stay in a cache. `counted_in` names the
    step that was counted, where what it became cannot be read.
    """

    per_image: int
    weight_bytes: int
    input_output_bytes_per_image: int
    counted_in: str
    shares: tuple[Share, ...] = ()

    def moved_bytes(self, batch_size: int) -> int:
        """Bytes that one call moves at least."""
        return self.weight_bytes + batch_size * self.input_output_bytes_per_image


class ArtifactSummary(Result):
    """Where an artifact lies and how large it is. `path` is relative to the report's folder.

    `digest` is over the content of its files: two keys can have made the same files.
    """

    key: str
    format: str
    path: str
    precision: str
    size_bytes: int
    digest: str | None = None


class StepSummary(Result):
    """One step of a variant: what ran, for how long, its log and the command that repeats it."""

    name: str
    key: str
    status: Literal["built", "cached", "failed"]
    seconds: float | None = None
    log: str | None = None
    repeat: str | None = None
    facts: dict[str, Any] = Field(default_factory=dict)


class VariantReport(Result):
    """Everything about one variant.

    `build_s` is the time that all its steps took when they were made, steps that it shares among them.
    `repair` has the trials of `tune --from` since this build. `layers` says where the error starts, as
    `verify-accuracy` found it. `flags` say why figures are missing: `no-gpu` or `no-runtime` for an
    artifact that was built and cannot run here. `checked` is what optcli could check of a variant that
    it skipped, from the steps before the one that cannot be done here. `runner` is the runner's name
    and effective settings; its flags stand with the rows. `pictures` lie beside the report.
    """

    status: Status
    reason: str | None = None
    checked: tuple[str, ...] = ()
    flags: tuple[Flag, ...] = ()
    log: str | None = None
    required: bool = False
    steps: tuple[StepSummary, ...] = ()
    build_s: float | None = None
    artifact: ArtifactSummary | None = None
    runner: dict[str, Any] | None = None
    latency: tuple[Latency, ...] = ()
    sweep: Sweep | None = None
    operations: Operations | None = None
    accuracy: Accuracy | None = None
    verdicts: tuple[Verdict, ...] = ()
    repair: Repair | None = None
    layers: Layers | None = None
    pictures: tuple[Picture, ...] = ()

    @property
    def on_host(self) -> tuple[Latency, ...]:
        """The rows of whole calls: what is compared, judged and recommended."""
        return tuple(row for row in self.latency if row.region == "host")

    @property
    def on_device(self) -> dict[int, Latency]:
        """By batch size: what a GPU computed for; empty where nothing ran on one."""
        return {row.batch_size: row for row in self.latency if row.region == "device"}


class RecipeSummary(Result):
    """Which recipe the report is about; `digest` is over its checked content."""

    name: str
    path: str
    digest: str


class Recommendation(Result):
    """What to serve at one batch size, in words; `variant` is None where nothing can be recommended.

    `withheld` says that the machine was not quiet enough to tell.
    """

    variant: str | None
    sentence: str
    withheld: bool = False


class DeviceVariant(Result):
    """What is said of a variant on a further device, in place of what `VariantReport` says.

    Verdicts on accuracy are those of the machine that ran optcli: it alone judges accuracy.
    """

    status: Status
    reason: str | None = None
    flags: tuple[Flag, ...] = ()
    log: str | None = None
    runner: dict[str, Any] | None = None
    latency: tuple[Latency, ...] = ()
    sweep: Sweep | None = None
    verdicts: tuple[Verdict, ...] = ()


class DeviceReport(Result):
    """What a further device gave, with the fields of `Report`; `variants` are those measured there."""

    environment: dict[str, Any]
    recommended: str | None
    recommendation: str
    recommendations: dict[int, Recommendation] = Field(default_factory=dict)
    exit_code: EndOfBuild
    exit_reason: str = ""
    protocol: dict[str, Any] = Field(default_factory=dict)
    variants: dict[str, DeviceVariant]


class Report(Result):
    """One build of one recipe; `variants` has its parts.

    `recommendations` has an entry for each batch size that was measured; with a service level, only for
    the size that it is about. `recommended` is the variant of the first entry, `recommendation` has all
    entries in words. `serving` is how to keep the service level at `slo.rate_per_s`; None where the
    recipe names no rate. `exit_reason` says why the build ended with `exit_code`. `took_s` is seconds
    by phase: `data`, `steps`, `latency`, `sweep`, `accuracy`. `judged_by` records by what the variants
    were judged, for a later gate (`results.terms.Terms`). `tuning` is the search
    that chose the variants. `device` is the recipe's name of the machine whose figures stand here, None
    where it asks for no device. `devices` has those of the others by name, and `on` gives the report of
    one. `exit_code` is that of all.
    """

    schema_version: int = Field(SCHEMA, alias="schema")
    recipe: RecipeSummary
    environment: dict[str, Any]
    baseline: str
    recommended: str | None
    recommendation: str
    recommendations: dict[int, Recommendation] = Field(default_factory=dict)
    serving: ServingChoice | None = None
    started: str
    finished: str
    exit_code: EndOfBuild
    exit_reason: str = ""
    protocol: dict[str, Any] = Field(default_factory=dict)
    took_s: dict[str, float] = Field(default_factory=dict)
    judged_by: dict[str, Any] | None = None
    tuning: Tuning | None = None
    device: str | None = None
    variants: dict[str, VariantReport]
    devices: dict[str, DeviceReport] = Field(default_factory=dict)

    @property
    def by_device(self) -> tuple[Report, ...]:
        """The report of each device alone, this one's first; just this one where it names no other."""
        alone = self.model_copy(update={"devices": {}}) if self.devices else self
        return (alone, *(self.on(name) for name in self.devices))

    def on(self, device: str) -> Report:
        """The report of one device alone. Raises KeyError for a device that it does not have."""
        if device == self.device:
            return self.by_device[0]
        there = self.devices[device]
        own = {name: getattr(there, name) for name in type(there).model_fields}
        variants = {
            name: self.variants[name].model_copy(
                update={
                    **{field: getattr(each, field) for field in type(each).model_fields},
                    "operations": None,  # of the peaks of this machine
                }
            )
            for name, each in there.variants.items()
            if name in self.variants
        }
        gone: dict[str, Any] = {"devices": {}, "serving": None, "tuning": None}
        return self.model_copy(update={**own, **gone, "device": device, "variants": variants})

    @staticmethod
    def load(path: Path) -> Report:
        """Read a report. Raises `UsageError` where it is missing, damaged or of another schema."""
        try:
            report = Report.model_validate(record_of(path))
            if report.schema_version == SCHEMA:
                return report
            message = f"the report has schema {report.schema_version}, this optcli reads {SCHEMA}"
            hint = "use the optcli that wrote it, or build again"
        except FileNotFoundError:
            message, hint = "there is no report here yet", "run `optcli build RECIPE` first"
        except OSError as error:
            message = f"the report cannot be read: {error.strerror or error}"
            hint = "look at its permissions, or name another report"
        except ValueError as error:
            message = f"this is not a readable report: {first_wrong(error)}"
            hint = "run `optcli build RECIPE` to write it again"
        raise UsageError(message, place=str(path), hint=hint)


def first_wrong(error: Exception) -> str:
    """What is wrong first, and where: what pydantic says spans lines and quotes whole values."""
    if not isinstance(error, ValidationError):
        return first_line(error)[:300]
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place[:200]}: {first['msg'][:200]}"
