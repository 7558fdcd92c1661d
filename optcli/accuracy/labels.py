"""Whether labels and classes go together: guessing, and a class order that does not match."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from optcli.accuracy.metrics import Records

_FEWEST = 30
_MOST_CLASSES = 4000
_MOST_SUSPICIOUS = 0.5


def suspicions(records: Records) -> dict[str, Any]:
    """`class_order`: why the labels seem to be numbered otherwise than the classes; and `doubts`.

    Looked into where the network is right for less than half of the samples. The signature of another
    order: each label goes with one prediction all the same. Whether it does is learnt on one half of
    the samples and counted on the other, so that chance cannot feign it; a numbering that begins
    elsewhere shows as one fixed difference. Where some classes stand in their place by luck (names
    sorted as text: 1, 10, 2) another order must be right at least twice as often. `doubts` are of one
    who is right hardly more often (three standard errors) than whoever always says the most frequent
    class.
    """
    import numpy as np

    if not {"label", "predicted", "rank"} <= records.keys() or len(records["label"]) < _FEWEST:
        return {}
    label, predicted = records["label"], records["predicted"]
    classes = int(records["classes"][0])
    top1 = float((records["rank"] < 1).mean())
    guess = max(1 / classes, float(np.bincount(label).max()) / len(label))
    error = math.sqrt(guess * (1 - guess) / len(label))
    guessing = top1 <= guess + 3 * error
    if not guessing and top1 >= _MOST_SUSPICIOUS:
        return {}
    percent, clear = f"{100 * top1:.1f} %", guess + max(0.15, 5 * error)
    clear = clear if guessing else max(clear, 2 * top1)
    shifted, shift = _shifted(label, predicted)
    mapped = _mapped(label, predicted, classes) if classes <= _MOST_CLASSES else 0.0
    if shifted > clear and shifted >= mapped:
        first = f"predictions are the label {shift:+d} for {100 * shifted:.0f} % of the samples"
        return {"class_order": f"{first}, and right for {percent}"}
    if mapped > clear:
        share = f"right for {percent} of the samples, but for {100 * mapped:.0f} %"
        return {"class_order": f"{share} if the classes are put into another order"}
    if not guessing:
        return {}
    found = f"top1 {percent} is hardly more than guessing gives with {classes} classes"
    return {"doubts": [f"{found}: look at the weights, at prepare and at the order of the classes"]}


def _shifted(label: np.ndarray, predicted: np.ndarray) -> tuple[float, int]:
    """The most frequent difference between prediction and label, and the share that has it."""
    import numpy as np

    apart, counts = np.unique(predicted - label, return_counts=True)
    if len(np.unique(label)) < 3:
        return 0.0, 0
    return float(counts.max() / len(label)), int(apart[counts.argmax()])


def _mapped(label: np.ndarray, predicted: np.ndarray, classes: int) -> float:
    """The share right under the best one-to-one renaming, learnt on one half, counted on the other."""
    import numpy as np
    from scipy.optimize import linear_sum_assignment

    order = np.random.default_rng(0).permutation(len(label))
    halves = (order[::2], order[1::2])
    hits = 0
    for learnt, counted in (halves, halves[::-1]):
        table = np.zeros((classes, classes))
        sound = learnt[predicted[learnt] >= 0]
        np.add.at(table, (label[sound], predicted[sound]), 1)
        _, renamed = linear_sum_assignment(table, maximize=True)
        hits += int((renamed[label[counted]] == predicted[counted]).sum())
    return hits / len(label)
