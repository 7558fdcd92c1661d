"""What a repair tried and found: one variant, its trials, and the patch that keeps the best."""

from __future__ import annotations

from typing import Any, Literal

from optcli.results.outcomes import Estimate, Result


class Trial(Result):
    """One rebuild of the variant with other options of its quantizing pass; number 0 is as it was.

    `options` are those that changed. `operators` counts the operators that compute on integers,
    `float_operators` how many fewer than in the variant as it was. `inside` says whether every
    blocking verdict on accuracy accepts; `drop` is what is lost against the baseline. `speedup` is
    over the variant without its quantizing pass in the same runner, both taking turns, at the first
    batch size; None where it was not measured, since only trials inside the bar are. Where the trial
    failed `reason` says why.
    """

    number: int
    label: str
    options: dict[str, Any]
    inside: bool = False
    value: float | None = None
    drop: Estimate | None = None
    operators: int | None = None
    float_operators: int | None = None
    p50_ms: float | None = None
    float_p50_ms: float | None = None
    speedup: Estimate | None = None
    size_bytes: int | None = None
    key: str | None = None
    seconds: float
    reason: str | None = None

    @property
    def pays(self) -> bool:
        """Faster than its own float parent, beyond the doubt of the interval."""
        return self.speedup is not None and (self.speedup.low or 0.0) > 1.0


class Repair(Result):
    """All trials of one variant; `chosen` is the number of the best: inside the bar, then the fastest.

    `outcome`: `repaired` (inside and faster than in float), `accurate` (inside, but not known to be
    faster), `unrepaired`. `patch` is a unified diff of the recipe, empty where there is nothing to
    change or `patch_problem` says why it cannot be written. `baseline` is the baseline's metric.
    """

    recipe: str
    variant: str
    quantizing_pass: str
    runner: str
    metric: str
    baseline: float | None
    batch_size: int
    trials: tuple[Trial, ...]
    chosen: int | None = None
    outcome: Literal["repaired", "accurate", "unrepaired"]
    stopped_because: str
    patch: str = ""
    patch_problem: str | None = None
    written: bool = False
    seconds: float

    @property
    def best(self) -> Trial | None:
        """The trial that was chosen."""
        return next((each for each in self.trials if each.number == self.chosen), None)
