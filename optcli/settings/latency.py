"""How latency is measured: the `latency` section of a recipe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from optcli.settings import Abbreviated, DeviceNames, Settings

# The longest that anything is measured, and the most fresh processes of one artifact.
DAY_S = 86_400.0
MOST_LAUNCHES = 100


class SweepSettings(Settings):
    """The batch sweep: sizes 1, 2, 4, ... of one artifact at a time, in several launches."""

    max: int = Field(64, ge=1, description="the largest batch size; the model's own limit holds too")
    max_seconds: float = Field(
        60.0, gt=0, le=DAY_S, description="time cap in seconds, per artifact, for all its launches"
    )
    launches: int = Field(5, ge=2, le=20, description="fresh processes per artifact")


# What a mode sets where the recipe does not; `quick` has the defaults that the fields declare.
_MODES: dict[str, dict[str, Any]] = {
    "table": {"launches": 5, "rounds": 8, "calls": 5, "max_seconds": 30.0},
    "gate": {"launches": 8, "rounds": 8, "calls": 5, "max_seconds": 20.0},
}


class LatencySettings(Abbreviated):
    """How latency is measured; the mode sets the defaults of the other settings.

    `quick` opens each artifact three times; `table`, for numbers to be cited, five times, each after
    warming up until it is steady; `gate` warms up both sides of a comparison by the same number of
    calls. Where the machine was not quiet, `quick` and `table` add up to three launches. With `off` a
    build measures none: it judges accuracy alone, and does not wait for other measurements.
    """

    short_for: ClassVar[str] = "mode"

    mode: Literal["quick", "table", "gate", "off"] = Field(
        "quick",
        description="`table`: for numbers to be cited, `gate`: as `optcli gate` measures, `off`: not"
        " at all",
    )
    batch_sizes: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (1,), min_length=1, description="batch sizes to measure; each gets a table of its own"
    )
    threads: int | None = Field(None, ge=1, description="intra-op threads; default: the usable cores")
    launches: int = Field(
        3, ge=1, le=MOST_LAUNCHES, description="fresh processes per artifact; quick 3, table 5, gate 8"
    )
    rounds: int = Field(
        4, ge=2, description="interleaved rounds per launch and batch size; table and gate 8"
    )
    calls: int = Field(
        10,
        ge=2,
        description="the fewest timed calls per round; optcli adds more while they are cheap; "
        "table and gate 5",
    )
    warmup: int = Field(
        10,
        ge=1,
        description="untimed calls before the first round; table and gate go on until it is steady",
    )
    max_seconds: float = Field(
        10.0,
        gt=0,
        le=DAY_S,
        description="time cap in seconds of the timed calls, per artifact and batch size, all launches"
        " together; table 30, gate 20",
    )
    min_speedup: float | None = Field(
        None,
        gt=0,
        description="reject a variant that is not this many times as fast as the baseline",
    )
    sweep: bool | SweepSettings = Field(
        False, description="measure every artifact over batch sizes as well; true, or its settings"
    )
    devices: DeviceNames | None = Field(
        None, description="where to measure, by names of `devices`; default: where optcli runs"
    )

    @model_validator(mode="before")
    @classmethod
    def _mode_sets_defaults(cls, value: Any) -> Any:
        if isinstance(value, str):
            value = {"mode": value}
        if isinstance(value, Mapping) and isinstance(value.get("mode"), str):
            return {**_MODES.get(value["mode"], {}), **value}
        return value

    @property
    def is_off(self) -> bool:
        """Whether a build measures no latency."""
        return self.mode == "off"

    @property
    def sweeping(self) -> SweepSettings | None:
        """The settings of the batch sweep; None where none is wanted."""
        if self.is_off:
            return None
        return SweepSettings() if self.sweep is True else self.sweep or None
