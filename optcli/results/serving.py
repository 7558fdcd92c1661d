"""How to serve what a build recommends: a part of its report."""

from __future__ import annotations

from pydantic import Field

from optcli.results.outcomes import Result


class ServingChoice(Result):
    """The plan of a build in short: the variant at the rate that its recipe promises.

    `kept` says whether a configuration keeps the service level with 20 % headroom at a load of 0.7 at
    most; without one the other figures are None. `figures_ms` are the percentiles that are promised.
    `padded_from` has by batch size the smallest one that is padded to it, of batches up to `batch`.
    """

    variant: str
    rate_per_s: float
    slo_ms: dict[str, float]
    kept: bool
    fit: bool = True
    batch: int | None = None
    wait_ms: float | None = None
    instances: int | None = None
    figures_ms: dict[str, float] = Field(default_factory=dict)
    padded_from: dict[int, int] = Field(default_factory=dict)
