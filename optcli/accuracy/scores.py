"""How far scores moved: mAP and top-1 see their order alone, a fixed threshold sees more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optcli.accuracy import detections
from optcli.accuracy.evaluation import Evaluation
from optcli.accuracy.parts import CONFIDENT
from optcli.results.outcomes import ScoreChange

if TYPE_CHECKING:
    import numpy as np

# A classifier's answer that is more likely than all others together.
_LIKELY = 0.5
# Of fewer confident scores one more or less is a large share.
_FEWEST = 20
# Of the detections, or answers, that a fixed threshold lets through.
_MOST_LOST = 0.05


def change_of(variant: Evaluation, baseline: Evaluation, score: float) -> ScoreChange | None:
    """The scores of detections, or the confidences of a classifier's answers, on the same samples.

    `score` is the smallest one that a recipe asks for. None where there are no such scores.
    """
    both = detections.of_both(variant, baseline)
    if both is not None:
        candidate, reference = (each[detections.NAMES.index("found_score")] for each in both)
        return _change(candidate, reference, "detections", max(score, CONFIDENT))
    own, other = variant.array("confidence"), baseline.array("confidence")
    return None if own is None or other is None else _change(own, other, "answers", _LIKELY)


def _change(candidate: np.ndarray, reference: np.ndarray, of: str, threshold: float) -> ScoreChange:
    import numpy as np

    count, before = (int((scores >= threshold).sum()) for scores in (candidate, reference))
    equal = float(np.sort(candidate)[-before]) if 0 < before <= len(candidate) else None
    record = {"of": of, "threshold": threshold, "count": count, "baseline": before, "equal": equal}
    return ScoreChange.model_validate(record)


def advice(change: ScoreChange) -> str | None:
    """What a fixed threshold would lose or let through beside the baseline's; None for little."""
    if change.baseline < _FEWEST or abs(change.count / change.baseline - 1) <= _MOST_LOST:
        return None
    share = abs(change.count / change.baseline - 1)
    than = f"{share:.0%} {'fewer' if change.count < change.baseline else 'more'}"
    as_many = "" if change.equal is None else f"; {change.equal:.2g} would let as many through"
    return (
        f"scores moved: a fixed threshold of {change.threshold:g} lets {change.count} {change.of}"
        f" through where the baseline has {change.baseline}, {than}{as_many}"
    )
