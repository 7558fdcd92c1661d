"""The two policies: what is lost on these samples, and what can be said of others."""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import NormalDist
from typing import Literal

from optcli.accuracy import bounds
from optcli.results import Accuracy, Flag, Verdict, flags
from optcli.results.outcomes import Outcome
from optcli.settings.accuracy import AccuracySettings

# A drop of exactly the bar passes, whatever the last bit of the division says.
_ROUNDING = 1e-12
_POWER = 0.8
# Where hardly a sample changed sides, more of them would: 1 % in the count of samples needed.
_LEAST_FLIPS = 0.01
_MOST_SAMPLES = 10_000_000

Policy = Literal["fixed-set", "non-inferiority"]


def judged(accuracy: Accuracy, settings: AccuracySettings) -> tuple[Verdict, Verdict]:
    """Both policies. The one that decides comes first, blocks, and is called `accuracy`.

    The other is called by its own name, for information. Both are inconclusive where the baseline is
    nothing to compare with.
    """
    verdicts = {"fixed-set": fixed_set(accuracy, settings)}
    verdicts["non-inferiority"] = non_inferiority(accuracy, settings)
    if accuracy.baseline_doubts:
        reason = f"the baseline is no valid reference: {'; '.join(accuracy.baseline_doubts)}"
        doubtful = {"outcome": "inconclusive", "reason": reason}
        verdicts = {name: each.model_copy(update=doubtful) for name, each in verdicts.items()}
    deciding = verdicts.pop(settings.policy)
    (other,) = verdicts.values()
    return (deciding.model_copy(update={"name": "accuracy", "blocking": True}), other)


def is_certain(verdicts: Iterable[Verdict], policy: Policy | None) -> bool:
    """Whether a bound says that no more than the bar is lost on samples not seen.

    `verdicts` are all of one artifact, `policy` the one that decides; None where nothing is judged.
    """
    name = "accuracy" if policy == "non-inferiority" else "non-inferiority"
    return policy is not None and any(v.name == name and v.outcome == "accept" for v in verdicts)


def fixed_set(accuracy: Accuracy, settings: AccuracySettings) -> Verdict:
    """The drop on the evaluation set decides, without a statistical test (MLPerf's quality targets)."""
    assert accuracy.drop is not None
    assert accuracy.value is not None
    assert accuracy.baseline is not None
    drop = accuracy.drop
    bar = settings.bar(accuracy.baseline, lower_is_better=accuracy.better == "lower")
    accepted = drop.value <= bar + _ROUNDING
    side = "below" if accuracy.value < accuracy.baseline else "above"
    against = (
        f"{_points(abs(drop.value))} {side} the baseline's {_percent(accuracy.baseline)}"
        if drop.value
        else "as the baseline"
    )
    counts = f"{accuracy.samples} samples"
    if accuracy.regressed is not None:
        counts = f"{accuracy.regressed} lost, {accuracy.improved} gained of {accuracy.samples}"
    if _different(accuracy) < accuracy.samples:
        counts += f", {_different(accuracy)} of them different"
    allowed = f"the {_points(bar)} allowed"
    if settings.ratio is not None:
        name = f"{settings.preset}: " if settings.preset else ""
        allowed += f" ({name}{settings.ratio:.4g} of the baseline's)"
    beyond = ""
    if accepted and accuracy.bounds is not None and (accuracy.bounds.high or 0.0) > bar:
        high, percent = accuracy.bounds.high or 0.0, _confidence(accuracy.confidence)
        beyond = f"; on samples not seen up to {_points(high)} may be lost ({percent} confidence)"
    return Verdict(
        name="fixed-set",
        outcome="accept" if accepted else "reject",
        blocking=False,
        limit=bar,
        actual=drop.value,
        interval=None if drop.low is None or drop.high is None else (drop.low, drop.high),
        reason=(
            f"{accuracy.metric} {_percent(accuracy.value)}, {against} ({counts}),"
            f" {'within' if accepted else 'over'} {allowed}{beyond}"
        ),
    )


def non_inferiority(accuracy: Accuracy, settings: AccuracySettings) -> Verdict:
    """A claim about samples not seen: the one-sided bound of the loss against the margin.

    Accept where the upper bound lies below the margin, reject where the lower one lies above it, and
    inconclusive between, with the number of samples that would decide.
    """
    assert accuracy.drop is not None
    assert accuracy.baseline is not None
    margin = margin_of(accuracy, settings)
    loss = accuracy.bounds
    percent = f"{_confidence(accuracy.confidence)} confidence"
    if loss is None or loss.low is None or loss.high is None:
        return Verdict(
            name="non-inferiority",
            outcome="inconclusive",
            blocking=False,
            limit=margin,
            actual=accuracy.drop.value,
            reason=_no_bounds(accuracy),
        )
    outcome: Outcome = "inconclusive"
    if loss.high < margin:
        outcome = "accept"
        finding = f"at most {_points(loss.high)} are lost, less than the margin of {_points(margin)}"
    elif loss.low > margin:
        outcome = "reject"
        finding = f"at least {_points(loss.low)} are lost, more than the margin of {_points(margin)}"
    else:
        finding = (
            f"the loss lies between {_points(loss.low)} and {_points(loss.high)}, and the margin"
            f" of {_points(margin)} between them"
        )
    needed = samples_needed(accuracy, margin) if outcome == "inconclusive" else None
    # The smallest upper bound that the samples can give, where that is known.
    change, tail = accuracy.largest_change, 1 - accuracy.confidence
    best = None if change is None else bounds.at_best(_different(accuracy), change, tail)
    if outcome == "inconclusive" and best is not None and best >= margin:
        finding += f"; {_different(accuracy)} samples cannot show a loss below {_points(best)}:" + (
            f" evaluate on at least {_count_text(needed)}"
            if needed
            else " no number of samples shows a loss of 0"
        )
    elif needed is not None:
        finding += f"; {_count_text(needed)} samples would decide, the set has {_different(accuracy)}"
    p = "" if accuracy.mcnemar_p is None else f"; McNemar's p {accuracy.mcnemar_p:.2g}"
    return Verdict(
        name="non-inferiority",
        outcome=outcome,
        blocking=False,
        limit=margin,
        actual=accuracy.drop.value,
        interval=(loss.low, loss.high),
        samples_needed=needed,
        reason=f"{finding} ({percent}{p})",
    )


def margin_of(accuracy: Accuracy, settings: AccuracySettings) -> float:
    """The loss that counts as none, as a fraction: `margin`, or else the bar."""
    assert accuracy.baseline is not None
    bar = settings.bar(accuracy.baseline, lower_is_better=accuracy.better == "lower")
    return settings.margin if settings.margin is not None else bar


def samples_needed(accuracy: Accuracy, margin: float, drop: float | None = None) -> int | None:
    """How many samples decide with 80 % power; `drop` is the true loss, default: the one found.

    n = (z_confidence + z_power)² · ψ / (margin - drop)², where ψ is the share of samples that change
    sides, for bootstrapped metrics the variance of the drop times the number of samples; and never
    fewer than bring the bound below the margin where no sample changes. None where the loss lies at
    the margin, so that no number would.
    """
    assert accuracy.drop is not None
    drop = accuracy.drop.value if drop is None else drop
    z = NormalDist().inv_cdf(accuracy.confidence) + NormalDist().inv_cdf(_POWER)
    distance = abs(margin - drop)
    least = bounds.needed(margin, accuracy.largest_change or 1.0, 1 - accuracy.confidence)
    if distance < _ROUNDING or least is None:
        return None
    return min(_MOST_SAMPLES, max(least, math.ceil(z * z * _flips(accuracy) / distance**2)))


def too_few(accuracy: Accuracy, settings: AccuracySettings) -> Flag | None:
    """A flag where the set is too small for its margin even if nothing is lost; None: it is not.

    It is large enough where it has told already.
    """
    if accuracy.drop is None or accuracy.metric is None or accuracy.baseline_doubts:
        return None
    if non_inferiority(accuracy, settings).outcome != "inconclusive":
        return None
    margin = margin_of(accuracy, settings)
    needed = samples_needed(accuracy, margin, drop=0.0) if margin > 0 else None
    if needed is None or needed <= _different(accuracy):
        return None
    more = needed >= _MOST_SAMPLES
    return flags.few_samples(_different(accuracy), margin, _rounded_up(needed), more)


def _flips(accuracy: Accuracy) -> float:
    if accuracy.regressed is not None and accuracy.improved is not None:
        return max(_LEAST_FLIPS, (accuracy.regressed + accuracy.improved) / accuracy.samples)
    drop = accuracy.drop
    if drop is None or drop.low is None or drop.high is None:
        return _LEAST_FLIPS
    # Half a 95 % interval is 1.96 standard errors.
    error = (drop.high - drop.low) / (2 * 1.96)
    return accuracy.samples * error * error


def _count_text(count: int) -> str:
    if count >= _MOST_SAMPLES:
        return f"more than {_MOST_SAMPLES:,}"
    return f"{_rounded_up(count):,}"


def _rounded_up(count: int) -> int:
    """To three digits."""
    digits: int = 10 ** max(0, len(str(count)) - 3)
    return math.ceil(count / digits) * digits


def _different(accuracy: Accuracy) -> int:
    """How many samples differ by content."""
    return accuracy.samples if accuracy.distinct is None else accuracy.distinct


def _no_bounds(accuracy: Accuracy) -> str:
    if accuracy.largest_change is None:
        return (
            "the samples give no interval: the range of the metric is not known; give your callable the"
            " attribute range = (low, high)"
        )
    return "the samples give no interval: in some resamples of them the metric is no number"


def _confidence(fraction: float) -> str:
    return f"{100 * fraction:.4g} %"


def _percent(fraction: float) -> str:
    return f"{fraction:.2%}".replace("%", " %")


def _points(fraction: float) -> str:
    return f"{100 * fraction:.2f} points"
