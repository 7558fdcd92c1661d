"""A variant beside the baseline: the same samples, one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from optcli import environment
from optcli.accuracy import bounds, detections, parts
from optcli.accuracy.differences import interface_changes, output_distances, paired, score_change
from optcli.accuracy.evaluation import Evaluation
from optcli.accuracy.metrics.cosine import Cosine, cosines
from optcli.accuracy.objects import Objects
from optcli.errors import InputError
from optcli.outputs import OutputMeaning, OutputPart
from optcli.results.outcomes import (
    Accuracy,
    ClassChange,
    ClassFigure,
    Estimate,
    FurtherFigure,
    OutputError,
)
from optcli.results.statistics import mcnemar

if TYPE_CHECKING:
    import numpy as np

_CLASSES_SHOWN = 5
# Of the bootstrap's resamples, in which the metric may be undefined.
_MOST_UNDEFINED = 0.01


def compare(
    variant: Evaluation,
    baseline: Evaluation,
    confidence: float = 0.95,
    meanings: Sequence[OutputMeaning] = (),
    score: float = 0.0,
) -> Accuracy:
    """Accuracy of a variant against the baseline (which may be compared with itself).

    The drop's 95 % interval, and its one-sided bounds at `confidence`, are Tango's score interval on
    the samples whose correctness differs; for metrics that are no share of right samples, BCa's of the
    paired bootstrap; neither is narrower than what `bounds` says can be told from so many samples of
    different content. `meanings` says what the outputs are, `score` from which score detections are
    used. Raises `InputError` where the two did not see the same samples in order.
    """
    import numpy as np

    if not np.array_equal(variant.ids(), baseline.ids()):
        raise InputError(
            "the variant and the baseline were evaluated on different samples",
            place=str(variant.folder),
            hint="evaluate both again: optcli build --remeasure",
        )
    candidate, reference, agreement = variant.array("predicted"), baseline.array("predicted"), None
    if candidate is not None and reference is not None and len(candidate):
        agreement = float((candidate == reference).mean())
    comparison: dict[str, Any] = {
        "samples": variant.samples,
        "output_error": output_error(variant, baseline, meanings, score),
        "agreement": agreement,
        "scores": score_change(variant, baseline, score),
        "stability": variant.stability,
        "doubts": variant.doubts,
        "baseline_doubts": baseline.doubts,
        "remarks": variant.remarks,
        "decoding": () if variant.guessed else variant.decoding,
        "distinct": int(_clusters(variant).max(initial=-1)) + 1,
        "full_range_weights": variant.full_range,
        "runner": variant.runner,
        "precision": variant.effective.get("precision"),
        "isa": environment.isa(),
    }
    if variant.metric is None or variant.metric != baseline.metric or _sizes_differ(variant, baseline):
        return Accuracy(metric=None, value=None, baseline=None, **comparison)
    assert variant.value is not None
    assert baseline.value is not None
    figures = {
        name: FurtherFigure(value=value, baseline=baseline.figures[name])
        for name, value in variant.figures.items()
        if name in baseline.figures and name != variant.metric
    }
    judged = (
        _counted(variant, baseline, confidence)
        or _embedded(variant, baseline, confidence)
        or _bootstrapped(variant, baseline, confidence)
    )
    return Accuracy(
        metric=variant.metric,
        baseline=baseline.value,
        better="lower" if variant.better == "lower" else "higher",
        confidence=confidence,
        figures=figures,
        per_class=_per_class(variant, baseline),
        largest_change=_largest(variant, baseline),
        **{"value": variant.value, **judged},
        **comparison,
    )


def _counted(variant: Evaluation, baseline: Evaluation, confidence: float) -> dict[str, Any] | None:
    """Counts of samples that changed sides, and what follows; None for metrics of another kind."""
    candidate, reference = variant.array("correct"), baseline.array("correct")
    if candidate is None or reference is None:
        return None
    regressed, improved = int((reference & ~candidate).sum()), int((candidate & ~reference).sum())
    value = (regressed - improved) / variant.samples
    count = bounds.effective(_clusters(variant))
    share = count / variant.samples
    low, high = bounds.counted(share * regressed, share * improved, count, 0.025)
    least, most = bounds.counted(share * regressed, share * improved, count, 1 - confidence)
    return {
        "drop": Estimate(value=value, low=low, high=high),
        "bounds": Estimate(value=value, low=least, high=most),
        "regressed": regressed,
        "improved": improved,
        "mcnemar_p": mcnemar(regressed, improved),
        "classes": _class_changes(variant.array("label"), candidate, reference),
    }


def _bootstrapped(variant: Evaluation, baseline: Evaluation, confidence: float) -> dict[str, Any]:
    """The drop with BCa's interval over resamples of the same samples, where those can tell.

    There is none where what one sample may cost is not known, or where the metric of more than one
    resample in a hundred is no number: the others are no fair sample of them.
    """
    assert variant.value is not None
    assert baseline.value is not None
    sign = -1 if variant.better == "lower" else 1
    value = sign * (baseline.value - variant.value)
    drops, without = (
        _finite(sign, variant.array(name), baseline.array(name)) for name in ("resampled", "left_out")
    )
    return _intervals(variant, baseline, confidence, value, drops, without)


def _embedded(variant: Evaluation, baseline: Evaluation, confidence: float) -> dict[str, Any] | None:
    """Value and drop of embeddings that are compared with the baseline's; None for other metrics."""
    candidate, reference = variant.array("embedding"), baseline.array("embedding")
    if candidate is None or reference is None:
        return None
    metric, clusters = Cosine(), _clusters(variant)
    cosine = {"cosine": cosines(candidate, reference)}
    own = {"cosine": cosines(reference, reference)}
    drops, without = (
        again(metric, own, clusters) - again(metric, cosine, clusters)
        for again in (bounds.resampled, bounds.left_out)
    )
    value = metric.value(cosine)
    drop = metric.value(own) - value
    return {"value": value, **_intervals(variant, baseline, confidence, drop, drops, without)}


def _sizes_differ(variant: Evaluation, baseline: Evaluation) -> bool:
    """Whether embeddings that a metric pairs have other sizes."""
    candidate, reference = variant.array("embedding"), baseline.array("embedding")
    return candidate is not None and reference is not None and candidate.shape != reference.shape


def _intervals(
    variant: Evaluation,
    baseline: Evaluation,
    confidence: float,
    value: float,
    drops: np.ndarray,
    without: np.ndarray,
) -> dict[str, Any]:
    """A drop with its bounds, by those of resamples and of the jackknife."""
    largest = _largest(variant, baseline)
    if len(drops) < (1 - _MOST_UNDEFINED) * bounds.RESAMPLES or largest is None:
        return {"drop": Estimate(value=value)}
    tails = (0.025, 1 - confidence)
    shares = [share for tail in tails for share in (tail, 1 - tail)]
    bca_bounds = bounds.bca(value, drops, without, shares)
    count = bounds.effective(_clusters(variant))
    narrowest = [bounds.of_drops(drops, largest, count, tail) for tail in tails]
    two_sided, one_sided = (
        Estimate(value=value, low=min(bca_bounds[2 * i], low), high=max(bca_bounds[2 * i + 1], high))
        for i, (low, high) in enumerate(narrowest)
    )
    return {"drop": two_sided, "bounds": one_sided}


def _clusters(evaluation: Evaluation) -> np.ndarray:
    """The number of each sample's content; without a record of it every sample is one of its own."""
    import numpy as np

    clusters = evaluation.array("cluster")
    return np.arange(evaluation.samples) if clusters is None else clusters


def _largest(variant: Evaluation, baseline: Evaluation) -> float | None:
    """What a share of samples costs at most, in either direction; None where that is not known."""
    changes = [each.largest_change for each in (variant, baseline) if each.largest_change is not None]
    return max(changes) if len(changes) == 2 else None


def _per_class(variant: Evaluation, baseline: Evaluation) -> tuple[ClassFigure, ...]:
    """The metric of every class that either has."""
    candidate, reference = _by_class(variant), _by_class(baseline)
    return tuple(
        ClassFigure(
            label=label,
            samples=(candidate.get(label) or reference[label])[0],
            value=candidate[label][1] if label in candidate else 0.0,
            baseline=reference[label][1] if label in reference else None,
        )
        for label in sorted({*candidate, *reference})
    )


def _by_class(evaluation: Evaluation) -> dict[int, tuple[int, float]]:
    """How many samples count, and the metric, by class."""
    label, samples, value = (
        evaluation.array(f"class_{part}") for part in ("label", "samples", "value")
    )
    if label is None or samples is None or value is None:
        return {}
    return {int(a): (int(b), float(c)) for a, b, c in zip(label, samples, value, strict=True)}


def _finite(sign: int, candidate: np.ndarray | None, reference: np.ndarray | None) -> np.ndarray:
    """What is lost in each resample where both have a value."""
    import numpy as np

    if candidate is None or reference is None:
        return np.zeros(0)
    drops: np.ndarray = sign * (reference - candidate)
    finite: np.ndarray = drops[np.isfinite(drops)]
    return finite


def _class_changes(
    label: np.ndarray | None, candidate: np.ndarray, reference: np.ndarray
) -> tuple[ClassChange, ...]:
    """The classes that lost or gained most samples, the worst loss first."""
    import numpy as np

    if label is None:
        return ()
    count = int(label.max(initial=0)) + 1
    sizes, lost, gained, now, before = (
        np.bincount(label[chosen], minlength=count)
        for chosen in (
            np.ones(len(label), bool),
            reference & ~candidate,
            candidate & ~reference,
            candidate,
            reference,
        )
    )
    order = np.lexsort((-lost, -np.abs(lost - gained)))
    changed = [int(number) for number in order[:_CLASSES_SHOWN] if lost[number] or gained[number]]
    return tuple(
        ClassChange(
            label=number,
            samples=int(sizes[number]),
            value=float(now[number] / sizes[number]),
            baseline=float(before[number] / sizes[number]),
            regressed=int(lost[number]),
            improved=int(gained[number]),
        )
        for number in sorted(changed, key=lambda number: gained[number] - lost[number])
    )


def output_error(
    variant: Evaluation,
    baseline: Evaluation,
    meanings: Sequence[OutputMeaning] = (),
    score: float = 0.0,
) -> OutputError:
    """How far the outputs lie apart; they are paired by name, or by position.

    First over all values kept: signal to noise is 10·log10(Σ baseline² / Σ (baseline - variant)²).
    Then by parts, which `meanings` of the baseline's outputs say, and the ranges of the values where
    they do not; and detections, where the recipe says how to decode them. Nothing is compared where a
    number of outputs, a shape or a kind of numbers differs, where values are NaN, and where the two are
    infinite at other places. Infinities that both have, as of a mask, are equal.
    """
    pairs = paired(variant.outputs, baseline.outputs)
    constant = [candidate.constant and not reference.constant for candidate, reference in pairs]
    # What another machine answered may be classes or detections, and no outputs.
    changed = interface_changes(variant.outputs, baseline.outputs) if variant.outputs else ()
    stored = [(a, b) for a, b in pairs if a.file is not None and b.file is not None]
    comparable = stored and all(each.comparable for each in changed)
    facts: dict[str, Any] = {
        "finite": variant.finite,
        "infinite_elsewhere": variant.finite
        and baseline.finite
        and not _alike_infinite(variant, baseline),
        "baseline_finite": baseline.finite,
        "constant": any(constant) or _all_constant(variant),
        "baseline_constant": _all_constant(baseline),
        "changes": changed,
    }
    if (both := detections.of_both(variant, baseline)) is not None:
        changed_detections = detections.compare(
            *both, variant.samples, score, (Objects.of(variant), Objects.of(baseline))
        )
        guessed = {"guessed": baseline.guessed}
        facts["detections"] = changed_detections.model_copy(update=guessed)
    if not (comparable and variant.finite and baseline.finite) or facts["infinite_elsewhere"]:
        return OutputError(**facts, compared=False)
    rows = [
        (reference.name, *_without_infinities(variant.rows(candidate), baseline.rows(reference)))
        for candidate, reference in stored
    ]
    distances = output_distances(rows)
    zero = distances.pop("signal") == 0
    facts["baseline_constant"] = facts["baseline_constant"] or zero
    known = {each.output: each for each in meanings}
    distances["parts"] = tuple(
        distance
        for name, candidate, reference in rows
        for distance in parts.part_distances(
            known.get(name) or OutputMeaning(name, (OutputPart("unknown"),), "unknown"),
            candidate,
            reference,
            score,
        )
    )
    return OutputError(**facts, **distances)


def _alike_infinite(variant: Evaluation, baseline: Evaluation) -> bool:
    """Whether the outputs of every sample are infinite at the same places."""
    import numpy as np

    candidate, reference = (each.array("infinite") for each in (variant, baseline))
    if candidate is None or reference is None:
        return candidate is reference
    return np.array_equal(candidate, reference)


def _without_infinities(candidate: np.ndarray, reference: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows with 0 where both are infinite; the rows themselves where nothing is."""
    import numpy as np

    infinite = np.isinf(reference) if reference.dtype.kind == "f" else np.zeros(1, bool)
    if not infinite.any():
        return candidate, reference
    count = min(len(candidate), len(reference))
    return tuple(np.where(infinite[:count], 0, each[:count]) for each in (candidate, reference))  # type: ignore[return-value]


def _all_constant(evaluation: Evaluation) -> bool:
    return bool(evaluation.outputs) and all(output.constant for output in evaluation.outputs)
