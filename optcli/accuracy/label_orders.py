"""Whether another numbering of the labels would surely make more answers right, at any accuracy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from optcli.accuracy import bounds, labels
from optcli.accuracy.evaluation import Evaluation

if TYPE_CHECKING:
    import numpy as np

# What another numbering must gain, of all samples, and the probability that it does not.
_GAIN, _TAIL = 0.1, 0.01
_FEWEST = 20
_NEAR = 0.02  # an order that has no name must be better by so much
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
    if label is None or predicted is None or len(label) < _FEWEST:
        return None
    right = label == predicted
    if right.mean() > 1 - _GAIN:
        return None
    count = len(label) if clusters is None else bounds.effective(clusters)
    best: tuple[float, str] | None = None
    for order_text, number in _tried(label, predicted, orders):
        then = number == predicted
        share = count / len(label)
        gained, lost = share * np.sum(then & ~right), share * np.sum(right & ~then)
        _, most = bounds.counted(float(lost), float(gained), count, _TAIL)
        if -most > _GAIN and (best is None or then.mean() > best[0] + _NEAR):
            best = float(then.mean()), order_text
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
    if classes <= labels.MOST_CLASSES:
        changed = labels.renaming(label, predicted, classes)
        seen = np.bincount(label, minlength=classes)
        moved = [f"{old} as {changed[old]}" for old in np.argsort(-seen) if changed[old] != old]
        order_text = f"the classes in another order, such as label {', '.join(moved[:_SHOWN])}"
        yield order_text, labels.renamed(label, predicted, classes)


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
