"""Whether labels and classes go together: guessing, and another order that would be right."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from optcli.accuracy import bounds
from optcli.accuracy.evaluation import Evaluation
from optcli.accuracy.metrics._classes import guessed

if TYPE_CHECKING:
    import numpy as np

    from optcli.accuracy.metrics import Metric, Records

_FEWEST = 30
MOST_CLASSES = 4000
_MOST_SUSPICIOUS = 0.5
# Standard errors within which a metric is no better than guessing.
_NEAR = 3.0
# Of networks that guess, this share is taken for sound by a share of right samples: about three
# standard errors, and exact for few samples as well.
_GUESSES_LUCKILY = 0.002
# Where not one sample is wrong: a handful can show no more, and few people try with so little.
_GUESSES_ALL = 0.05


def doubts(
    name: str,
    metric: Metric,
    records: Records,
    clusters: np.ndarray,
    resampled: np.ndarray | None,
) -> list[str]:
    """Why what has this metric is nothing to compare with: it is zero, or hardly better than guessing.

    A share of right samples must be one that guessing reaches in hardly any run, by the binomial
    distribution. Any other metric must be three standard errors away, from 30 different samples on;
    of fewer any better value will do. `resampled` are the bootstrap's values, which the standard error
    is taken from.
    """
    import numpy as np

    value, count = metric.value(records), int(clusters.max()) + 1
    if metric.better() == "higher" and value == 0:
        return [f"{name} is {value:g}: look at the weights, at prepare and at the labels"]
    if {"rank", "classes"} <= records.keys() and metric.chance(records) is None:
        name, value, chance = "top1", float((records["rank"] < 1).mean()), guessed(records, 1)
        sound = not _is_luck(value, count, chance)
    else:
        known_chance = metric.chance(records)
        if known_chance is None:
            return []
        chance = known_chance
        lead = value - chance if metric.better() == "higher" else chance - value
        if metric.right(records) is not None:
            sound = not _is_luck(value, count, chance)
        else:
            finite = resampled[np.isfinite(resampled)] if resampled is not None else np.zeros(0)
            error = float(finite.std()) if len(finite) > 1 and count >= _FEWEST else 0.0
            sound = lead > _NEAR * error
    if sound:
        return []
    of = f" with {int(records['classes'][0])} classes" if "classes" in records else ""
    return [
        f"{name} {_percent(value)} is hardly more than guessing gives{of} ({_percent(chance)}):"
        " look at the weights, at prepare and at the order of the classes"
    ]


def _is_luck(share: float, count: int, chance: float) -> bool:
    """Whether who guesses has a share of `count` samples right too often to call it knowledge."""
    right = math.floor(share * count + 1e-9)
    limit = _GUESSES_ALL if right == count else _GUESSES_LUCKILY
    if right <= 0:
        return True
    if _tail_bound(right, count, chance) <= limit:  # most networks: scipy takes a while to import
        return False
    from scipy.special import bdtrc

    return float(bdtrc(right - 1, count, chance)) > limit


def _tail_bound(right: int, count: int, chance: float) -> float:
    """At least the probability that who guesses has so many samples right, or more.

    It is Chernoff's bound for the binomial distribution, exp(-n D(right/n || chance)) with the relative
    entropy D (Hoeffding 1963, theorem 1).
    """
    share = right / count
    if not 0 < chance < share:
        return 1.0
    entropy = share * math.log(share / chance)
    if share < 1:
        entropy += (1 - share) * math.log((1 - share) / (1 - chance))
    return math.exp(-count * entropy)


def other_order(records: Records) -> str | None:
    """Why the labels seem to be numbered otherwise than the classes; None where they do not.

    Looked into where the network is right for less than half of the samples. The signature of another
    order: each label goes with one prediction all the same. Whether it does is learnt on one half of
    the samples and counted on the other, so that chance cannot feign it; a numbering that begins
    elsewhere shows as one fixed difference. Where some classes stand in their place by luck (names
    sorted as text: 1, 10, 2) another order must be right at least twice as often.
    """
    if not {"label", "predicted", "rank"} <= records.keys() or len(records["label"]) < _FEWEST:
        return None
    label, predicted = records["label"], records["predicted"]
    classes = int(records["classes"][0])
    top1 = float((records["rank"] < 1).mean())
    guess = guessed(records, 1)
    error = math.sqrt(guess * (1 - guess) / len(label))
    guessing = top1 <= guess + _NEAR * error
    if not guessing and top1 >= _MOST_SUSPICIOUS:
        return None
    percent, clear = f"{100 * top1:.1f} %", guess + max(0.15, 5 * error)
    clear = clear if guessing else max(clear, 2 * top1)
    shifted, shift = _shifted(label, predicted)
    mapped = _mapped(label, predicted, classes) if classes <= MOST_CLASSES else 0.0
    if shifted > clear and shifted >= mapped:
        first = f"predictions are the label {shift:+d} for {100 * shifted:.0f} % of the samples"
        return f"{first}, and right for {percent}"
    if mapped > clear:
        share = f"right for {percent} of the samples, but for {100 * mapped:.0f} %"
        return f"{share} if the classes are put into another order"
    return None


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"


def _shifted(label: np.ndarray, predicted: np.ndarray) -> tuple[float, int]:
    """The most frequent difference between prediction and label, and the share that has it."""
    import numpy as np

    apart, counts = np.unique(predicted - label, return_counts=True)
    if len(np.unique(label)) < 3:
        return 0.0, 0
    return float(counts.max() / len(label)), int(apart[counts.argmax()])


def _mapped(label: np.ndarray, predicted: np.ndarray, classes: int) -> float:
    """The share right under the best one-to-one renaming, learnt on one half, counted on the other."""
    return float((renamed(label, predicted, classes) == predicted).mean())


def renamed(label: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """Each sample's label under the one-to-one renaming that is best for the other half of them."""
    import numpy as np

    order = np.random.default_rng(0).permutation(len(label))
    halves = (order[::2], order[1::2])
    numbers: np.ndarray = np.array(label)
    for learnt, counted in (halves, halves[::-1]):
        numbers[counted] = renaming(label[learnt], predicted[learnt], classes)[label[counted]]
    return numbers


def renaming(label: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """The one-to-one renaming of `classes` by which most labels are what was predicted."""
    import numpy as np
    from scipy.optimize import linear_sum_assignment

    table = np.zeros((classes, classes))
    sound = (predicted >= 0) & (predicted < classes)
    np.add.at(table, (label[sound], predicted[sound]), 1)
    np.fill_diagonal(table, table.diagonal() + 0.5)  # who is not seen keeps its number
    numbers: np.ndarray = linear_sum_assignment(table, maximize=True)[1]
    return numbers


# What another numbering must gain, of all samples, and the probability that it does not.
_GAIN, _TAIL = 0.1, 0.01
_FEWEST_PAIRS = 20
_CLEARLY = 0.02  # an order that has no name must be better by so much
_SHOWN = 3


def better_order(evaluation: Evaluation, orders: Mapping[str, Sequence[int]]) -> str | None:
    """Which other numbering of the labels would surely gain over ten points, in a sentence.

    Tried are labels one larger and one smaller, all of them or from some class on, as where one role
    lacks a class, and `orders`: a name, and for each label its number there; and the best of all
    orders, if none of these comes near it. Of a detector these are the classes of boxes that were
    found, of a class map those of some pixels of each image. The gain is that of the same samples.
    """
    import numpy as np

    label, predicted, what = evaluation.array("label"), evaluation.array("predicted"), "samples"
    clusters = evaluation.array("cluster")
    if label is None:
        label, predicted = evaluation.array("pair_label"), evaluation.array("pair_class")
        what, clusters = "boxes that were found", None
    if label is None:
        label, predicted = evaluation.array("pixel_label"), evaluation.array("pixel_class")
        # Those of one image are one piece of evidence.
        what, clusters = "pixels", evaluation.array("pixel_sample")
    if label is None or predicted is None or len(label) < _FEWEST_PAIRS:
        return None
    right = label == predicted
    if right.mean() > 1 - _GAIN:
        return None
    count = len(label) if clusters is None else bounds.effective(clusters)
    best: tuple[float, str] | None = None
    for order_text, number in _tried(label, predicted, orders):
        reordered = number == predicted
        share = count / len(label)
        gained, lost = share * np.sum(reordered & ~right), share * np.sum(right & ~reordered)
        _, most = bounds.counted(float(lost), float(gained), count, _TAIL)
        if -most > _GAIN and (best is None or reordered.mean() > best[0] + _CLEARLY):
            best = float(reordered.mean()), order_text
    if best is None:
        return None
    share, order_text = best
    now = 100 * right.mean()
    return f"{100 * share:.1f} % of the {what} would be right with {order_text}, and {now:.1f} % are"


def _tried(
    label: np.ndarray, predicted: np.ndarray, orders: Mapping[str, Sequence[int]]
) -> Iterator[tuple[str, np.ndarray]]:
    """Other numberings: in words, and the number of each sample's label there."""
    import numpy as np

    for step, size in ((1, "larger"), (-1, "smaller")):
        yield f"labels one {size} (`labels: {{offset: {step}}}`)", label + step
    for name, order in orders.items():
        table = np.arange(max(int(label.max()) + 1, len(order)))
        table[: len(order)] = order
        yield f"the classes in another order, {name}", table[label]
    for step, why in ((1, "lack a class before it"), (-1, "have a class more before it")):
        first, number = _from_a_class_on(label, predicted, step)
        size = "larger" if step > 0 else "smaller"
        yield f"labels one {size} from {first} on, as where the data {why}", number
    classes = max(int(label.max()), int(predicted.max())) + 1
    if classes <= MOST_CLASSES:
        changed = renaming(label, predicted, classes)
        seen = np.bincount(label, minlength=classes)
        moved = [f"{old} as {changed[old]}" for old in np.argsort(-seen) if changed[old] != old]
        order_text = f"the classes in another order, such as label {', '.join(moved[:_SHOWN])}"
        yield order_text, renamed(label, predicted, classes)


def _from_a_class_on(label: np.ndarray, predicted: np.ndarray, step: int) -> tuple[int, np.ndarray]:
    """The class from which on moved labels are right most often, and the labels moved from there on.

    Half of the samples choose the class for the other half, so that chance gains nothing.
    """
    import numpy as np

    order = np.random.default_rng(0).permutation(len(label))
    number = label.copy()
    for chooses, counts in ((order[::2], order[1::2]), (order[1::2], order[::2])):
        first = _first(label[chooses], predicted[chooses], step)
        moved = counts[label[counts] >= first]
        number[moved] += step
    return _first(label, predicted, step), number


def _first(label: np.ndarray, predicted: np.ndarray, step: int) -> int:
    import numpy as np

    classes = int(label.max()) + 1
    gained = np.bincount(label[predicted == label + step], minlength=classes)
    lost = np.bincount(label[predicted == label], minlength=classes)
    from_here_on = np.cumsum((gained - lost)[::-1])[::-1]
    return int(from_here_on.argmax())
