"""How to serve what a build recommends, and what `optcli infer` did.

The JSON form of `Inference` is public, with a schema version of its own. Times are in seconds, rates in
images a second, shares are fractions.
"""

from __future__ import annotations

from typing import Literal

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


INFERENCE_SCHEMA = 1


class Inference(Result):
    """One run over stored images.

    `answered` and `failed` count the images of this run; `answered_before` are those of shards that
    an earlier run had finished, failed ones among them. `failures` are a few of the reasons, with ids.
    `rates` are images a second by batch size, as measured on random inputs before the run: reading and
    writing are not in them; empty where nothing was missing. `costs` are what 1,000 images cost by
    batch size at these rates, of one copy of the model that has the machine, or worker, for itself;
    empty where no price is named. `images_per_s` is that of the run from
    the first shard's end to the last one's, all workers together, None for a single shard.
    """

    schema_version: int = Field(INFERENCE_SCHEMA, alias="schema")
    variant: str
    input: str
    output: str
    form: Literal["parquet", "jsonl"]
    images: int
    shards: int
    shards_before: int
    answered: int = 0
    failed: int = 0
    answered_before: int = 0
    failures: tuple[str, ...] = ()
    batch_size: int
    rates: dict[int, float] = Field(default_factory=dict)
    costs: dict[int, float] = Field(default_factory=dict)
    workers: int
    threads: int
    seconds: float
    images_per_s: float | None = None
    cost_per_1000: float | None = None
    notes: tuple[str, ...] = ()
