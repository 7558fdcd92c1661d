"""When a training may end early: samples that are held out of it say how far it has come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optcli.passes._torch.learning import Judge

if TYPE_CHECKING:
    import torch

    from optcli.passes._torch.learning import Call

# Of all training samples at most so many are held out.
MOST_HELD_OUT = 0.1
# So often in the course of the learning rate it is looked, and from where on it may be hopeless.
_LOOKS, _HALF = 16, 0.5
# The steps in which the rate then falls to zero: a share of those before, and at least so many.
_ENDING_SHARE, _LEAST_ENDING = 0.15, 16


@dataclass(frozen=True)
class EarlyStopping:
    """Ends a training that has reached its aim, or that will not reach it.

    `judge` has the samples that are held out, and `teacher` is the share of them that the teacher has
    right; without labels that is 1. A network that loses at most `enough` of them against the teacher
    has reached its aim. One that loses more than `hopeless` when half of the training is over will not.
    """

    judge: Judge
    teacher: float
    enough: float | None
    hopeless: float | None

    def is_due(self, share: float, looks: int) -> bool:
        """Whether a training is to be looked at, of which a share is done, and that was so often."""
        return looks + 1 < _LOOKS and share >= (looks + 1) / _LOOKS

    def lost(self, model: torch.nn.Module, call: Call) -> float | None:
        """The share of the held-out samples that the network loses against the teacher.

        The network is left in evaluation mode. None where neither labels nor classes say what is right.
        """
        right = self.judge(model, call).share
        return None if right is None else self.teacher - right

    def why(self, lost: float, share: float) -> str | None:
        """Why a training may end of which a share is done; None where it goes on."""
        changed = f"{100 * lost:.1f} points lost" if lost >= 0 else f"{-100 * lost:.1f} points gained"
        at = f"{changed} on {len(self.judge.examples)} samples held out of the training"
        if self.enough is not None and lost <= self.enough:
            return f"it has reached its aim: {at}, {_limit(self.enough)}"
        if self.hopeless is not None and share >= _HALF and lost > self.hopeless:
            return f"it will not reach its aim: {at} after half of it, {_limit(self.hopeless)}"
        return None


def _limit(share: float) -> str:
    return f"{100 * share:g} may be lost" if share >= 0 else f"{-100 * share:g} must be gained"


def facts(stopping: EarlyStopping, looks: list[dict[str, float]], why: str | None) -> dict[str, Any]:
    """What is to be known of it: samples, every look, why the training ended, and after what share."""
    share = 1.0 if why is None else min(1.0, looks[-1]["share"] * (1 + _ENDING_SHARE))
    return {
        "held_out": len(stopping.judge.examples),
        "teacher": stopping.teacher,
        "looks": looks,
        "why": why,
        "share": round(share, 3),
    }


def ending(done: float) -> int:
    """The steps in which the learning rate falls to zero, after so many."""
    return max(_LEAST_ENDING, round(_ENDING_SHARE * done))
