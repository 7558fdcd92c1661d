"""What a recipe promises: bounds of what a variant takes, and a rate."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from optcli.settings import Settings


class SloSettings(Settings):
    """The promise to keep: bounds of latency, memory, size and load time, and a request rate.

    The bounds of latency are those of the smallest batch size that is measured, that of memory is of
    the batch size that takes most.
    """

    RESOURCES: ClassVar[tuple[str, ...]] = ("load_ms", "memory_bytes", "size_bytes")

    p50_ms: float | None = Field(None, gt=0, description="half of the calls may take at most this long")
    p95_ms: float | None = Field(None, gt=0, description="95 of 100 calls may take at most this long")
    p99_ms: float | None = Field(None, gt=0, description="99 of 100 calls may take at most this long")
    load_ms: float | None = Field(
        None, gt=0, description="opening the artifact in a new process may take at most this long"
    )
    memory_bytes: int | None = Field(
        None,
        gt=0,
        description="the process may hold at most this much of the machine's memory, less what it holds"
        " without runtime and model",
    )
    size_bytes: int | None = Field(
        None, gt=0, description="the files of the artifact may take at most this much"
    )
    rate_per_s: float | None = Field(
        None,
        gt=0,
        description="requests a second; beside a percentile, the report says how to serve them, as"
        " `optcli plan` does",
    )

    @property
    def bounds(self) -> dict[str, float]:
        """Every bound that is promised, by its name."""
        return {name: limit for name, limit in self if name != "rate_per_s" and limit is not None}

    @property
    def percentiles_ms(self) -> dict[str, float]:
        """The bounds on percentiles of the latency, as `p99_ms`: what queues and plans ask for."""
        return {name: limit for name, limit in self.bounds.items() if name not in self.RESOURCES}
