"""Whether two servers give the same answers, by what each output holds, and with what certainty."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from statistics import NormalDist

import numpy as np

from optcli.errors import counted, plural
from optcli.results import Estimate
from optcli.results.loadtest import Agreement, Rule
from optcli.results.outcomes import Outcome, Verdict
from optcli.results.statistics import needed
from optcli.serving.loadtest.records import share_interval

# How far apart numbers may be that count as the same, as a share of their largest magnitude, and which
# magnitude is tiny beside the largest of an output. Columns of a table are quantities of their own, and
# tiny where float32 no longer tells them from zero.
_NEAR, _TINY, _TINY_COLUMN = 0.05, 1e-3, 1e-6
_TABLE = 2  # dimensions
_RULES: Mapping[Rule, str] = {
    "class": "the same class",
    "equal": "equal numbers",
    "near": f"within {_NEAR:.0%} of the largest magnitude",
}
# More samples are asked for until they decide in 80 % of runs at 95 % confidence.
_CONFIDENCE, _POWER = 0.95, 0.8


def agreed(
    first: Mapping[str, np.ndarray],
    second: Mapping[str, np.ndarray],
    scores: Collection[str] = (),
) -> Agreement:
    """On how many samples two servers say the same; outputs by name, the first axis is the sample.

    The outputs `scores` [samples, classes] agree where the same class has the largest score, whole
    numbers where they are equal, all other numbers where they are near. An output of that shape alone
    may be one of a regressor, an embedding or a detector.
    """
    rules: dict[str, Rule] = {}
    count = min(len(each[name]) for each in (first, second) for name in first if name in second)
    same = np.ones(count, dtype=bool)
    apart = 0.0
    for name in first.keys() & second.keys():
        one, other = (np.asarray(each[name][:count]) for each in (first, second))
        of_classes = name in scores and one.ndim == _TABLE and one.shape[1] > 1
        rules[name] = "equal" if one.dtype.kind != "f" else "class" if of_classes else "near"
        if one.shape != other.shape:
            same[:] = False
            continue
        values = tuple(range(1, one.ndim))
        if rules[name] == "equal":
            same &= (one == other).all(axis=values)
            continue
        magnitudes = _magnitudes(one, together=rules[name] == "class")
        difference = (np.abs(one - other) / magnitudes).max(axis=values, initial=0.0)
        apart = max(apart, float(difference.max()))
        same &= difference <= _NEAR if rules[name] == "near" else one.argmax(1) == other.argmax(1)
    agreeing = int(same.sum())
    low, high = share_interval(agreeing, count)
    return Agreement(
        samples=count,
        agreeing=agreeing,
        share=Estimate(value=agreeing / count, low=low, high=high),
        largest_difference=apart,
        rules=dict(sorted(rules.items())),
        missing=tuple(sorted(first.keys() - second.keys())),
        added=tuple(sorted(second.keys() - first.keys())),
    )


def _magnitudes(values: np.ndarray, *, together: bool) -> np.ndarray:
    """The largest magnitude that differences [samples, ...] are a share of.

    Each entry of the shortest axis has its own, such as a column, a coordinate of boxes or the score of
    a class: scores beside coordinates count too. It is a thousandth of the largest of all at least, so
    that a class which is never there decides nothing by its noise. The columns [samples, columns] of a
    regressor may be further apart. `together`: all values have one magnitude, as the scores of classes.
    """
    axes = set(range(values.ndim))
    if values.ndim > 1 and not together:
        axes -= {1 + int(np.argmin(values.shape[1:]))}
    largest = np.abs(values).max(axis=tuple(axes), keepdims=True, initial=0.0)
    tiny = _TINY if values.ndim > _TABLE else _TINY_COLUMN
    magnitudes: np.ndarray = np.maximum(largest, tiny * largest.max(initial=0.0) or 1.0)
    return magnitudes


def verdict(agreement: Agreement, least: float) -> Verdict:
    """By the interval of the share that agrees. Clients that read a missing output have no answer.

    `least` is the share of the samples that must give the same answer.
    """
    share = agreement.share
    ends = (share.low or 0.0, share.high or 1.0)
    outcome: Outcome = "accept" if ends[0] >= least else "inconclusive"
    if agreement.missing or ends[1] < least:
        outcome = "reject"
    rules = ", ".join(f"{name}: {_RULES[rule]}" for name, rule in agreement.rules.items())
    sentences = [
        f"{agreement.agreeing} of {counted(agreement.samples, 'sample')} give the same answer"
        f" [{ends[0]:.1%}, {ends[1]:.1%}], at least {least:.1%} must ({rules})"
    ]
    more = samples_needed(agreement, least) if outcome == "inconclusive" else None
    if more is not None:
        sentences.append(
            f"about {more:,} samples would decide: name a recipe that has them with --recipe"
        )
    if agreement.missing:
        sentences.insert(0, f"the second server lacks {_outputs(agreement.missing)} of the first")
    if agreement.added:
        sentences.append(f"only the second server gives {_outputs(agreement.added)}")
    return Verdict(
        name="agreement",
        outcome=outcome,
        blocking=True,
        limit=least,
        actual=share.value,
        interval=ends,
        samples_needed=more,
        reason="; ".join(sentences),
    )


def samples_needed(agreement: Agreement, least: float) -> int | None:
    """How many samples decide with 80 % power where the share that agrees is the one seen.

    The test of one share against another, corrected for whole numbers: J. L. Fleiss, B. Levin and M. C.
    Paik, Statistical Methods for Rates and Proportions (2003), section 2.5. None where that share is
    the bound itself, or the bound is one that no number of samples shows.
    """
    share = agreement.share.value
    if share == least or not 0 < least < 1:
        return None
    count = float(needed(least)) if share == 1 else 0.0
    if not count:
        certain, powerful = (NormalDist().inv_cdf(each) for each in ((1 + _CONFIDENCE) / 2, _POWER))
        spread = certain * math.sqrt(least * (1 - least)) + powerful * math.sqrt(share * (1 - share))
        distance = abs(share - least)
        count = (spread / distance) ** 2
        count *= (1 + math.sqrt(1 + 2 / (count * distance))) ** 2 / 4
    return max(agreement.samples + 1, math.ceil(count))


def _outputs(names: Sequence[str]) -> str:
    return f"the {plural(len(names), 'output')} {', '.join(map(repr, names))}"
