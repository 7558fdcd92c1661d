"""What changed between two reports, as plain data; its JSON form is public, as the report's."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from optcli.results import Estimate, Result

SCHEMA = 1

Speed = Literal["faster", "slower", "no clear change", "same artifact", "not known"]
Rightness = Literal["better", "worse", "unchanged", "no clear change", "not known", "not comparable"]


class ComparedBuild(Result):
    """Which build one side is."""

    label: str
    recipe: str
    started: str
    machine: str
    mode: str
    launches: int


class SpeedChange(Result):
    """One percentile before and after, in milliseconds; `ratio` is after over before, with interval.

    `same artifact`: the files and settings are the same, and what moved is the machine. There is no
    ratio where the machine was not fit on one of the sides.
    """

    before: Estimate | None = None
    after: Estimate | None = None
    ratio: Estimate | None = None
    outcome: Speed = "not known"


class BatchChange(Result):
    """One variant at one batch size, in one region, that both reports have."""

    batch_size: int
    region: Literal["host", "device"] = "host"
    p50: SpeedChange
    p95: SpeedChange
    p99: SpeedChange


class AccuracyChange(Result):
    """Accuracy before and after, as fractions; `difference` is after minus before.

    `metric` is that of the later report. None, and `not comparable`, where it was another metric or
    other samples; `reason` says so.
    """

    metric: str
    before: float
    after: float
    difference: Estimate | None = None
    reason: str = ""
    outcome: Rightness


class VariantChange(Result):
    """One variant in both reports.

    `name_before` differs where the two were matched by being the same artifact in the same runner.
    `same` says that they are, settings included: what moved then is the machine, or the library where
    versions changed. `settings` lists what changed about how it runs.
    """

    name: str
    name_before: str
    same: bool
    settings: tuple[str, ...] = ()
    status_before: str
    status: str
    size_bytes_before: int | None = None
    size_bytes: int | None = None
    latency: tuple[BatchChange, ...] = ()
    accuracy: AccuracyChange | None = None


class ReportComparison(Result):
    """What changed from one report to another.

    `reasons` say why their latency is not comparable (empty: it is); `changed` lists versions and
    settings of the whole build that differ. `drifts` are by percentile and batch size how much, as a
    ratio of at least 1, artifacts that are the same in both moved beyond their own intervals; `drift`
    are those of p50.
    """

    schema_version: int = Field(SCHEMA, alias="schema")
    before: ComparedBuild
    after: ComparedBuild
    comparable: bool
    reasons: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    drift: dict[int, float] = Field(default_factory=dict)
    drifts: dict[str, dict[int, float]] = Field(default_factory=dict)
    variants: tuple[VariantChange, ...] = ()
    only_before: tuple[str, ...] = ()
    only_after: tuple[str, ...] = ()
