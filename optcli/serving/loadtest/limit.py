"""The highest rate that keeps the promise: a ramp until it breaks, bisection, and a confirmation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from optcli.results.loadtest import LimitFound, LoadPoint

Try = Callable[[float, Literal["ramp", "bisect", "confirm"]], LoadPoint]

# Where the ramp begins, as a share of the predicted limit, and by how much it grows.
START_SHARE, STEP = 0.5, 1.25
# How far apart the highest rate that keeps the promise and the lowest that breaks it may be.
PRECISION = 0.05
# From where on down the ramp is given up when its first rate breaks the promise.
_LOWEST = 0.1
_MOST_STEPS = 20
# How many minutes are tried: one that cannot tell is repeated once, else the rate is lowered.
_CONFIRMATIONS = 4
# How often a rate is tried where the client sends late: other work on the machine passes.
_ATTEMPTS = 3


def found(start_per_s: float, attempt: Try) -> tuple[LimitFound, list[LoadPoint]]:
    """The limit and every rate that was tried, in order.

    `attempt` loads the server at a rate. A wrong answer ends the search, and so does a client that is
    saturated time after time at one rate: no higher rate would tell more.
    """
    points: list[LoadPoint] = []

    def keeps(rate: float, purpose: Literal["ramp", "bisect", "confirm"]) -> bool:
        for _ in range(_ATTEMPTS):
            points.append(attempt(rate, purpose))
            if points[-1].breach or not points[-1].client.saturated:
                break
        return not points[-1].breach

    def ended() -> bool:
        last = points[-1]
        return last.wrong > 0 or (last.client.saturated and not last.breach)

    rate = start_per_s
    kept: float | None = None
    broken: float | None = None
    for _ in range(_MOST_STEPS):
        if keeps(rate, "ramp"):
            kept = rate
            rate *= STEP
        else:
            broken = rate
            rate /= STEP
        if ended() or (kept and broken) or rate < _LOWEST * start_per_s:
            break
    while kept and broken and broken - kept > PRECISION * kept and not ended():
        middle = (kept + broken) / 2
        if keeps(middle, "bisect"):
            kept = middle
        else:
            broken = middle
    confirmed = repeated = False
    for _ in range(_CONFIRMATIONS):
        if kept is None or broken is None or ended():
            break
        held = keeps(kept, "confirm")
        confirmed = points[-1].outcome == "accept"
        if confirmed or (held and points[-1].short):  # a short run never accepts
            break
        if held and not repeated:
            repeated = True
            continue
        if not held:
            broken = kept
        kept, repeated = kept * (1 - PRECISION), False
    if not confirmed:
        kept = max((each.rate_per_s for each in points if _keeps(each, broken)), default=None)
    return LimitFound(rate_per_s=kept, broken_per_s=broken, confirmed=confirmed), points


def _keeps(point: LoadPoint, broken: float | None) -> bool:
    """Whether the promise was not broken at a rate, nor at a lower one."""
    lower = broken is None or point.rate_per_s < broken
    return lower and point.outcome != "reject" and not point.client.saturated
