"""Verdicts on accuracy: by the accuracy bar, and on outputs that are not sound at all."""

from __future__ import annotations

from collections.abc import Iterator

from optcli.accuracy import decoding, interface, policies, saturation, scores, unlabelled
from optcli.results.outcomes import Accuracy, Outcome, OutputError, Stability, Verdict
from optcli.settings.accuracy import AccuracySettings

# The share of samples that differ by content, below which it is said.
_DIFFERENT = 0.95
# What limits leave out of fewer images than this share changes little: it is told, and doubts nothing.
_LIMITS, _FEW_IMAGES = ("max_candidates", "max_detections"), 0.05
_SOUND = "finite, and they depend on the input"
_LOOK = ": look at the weights and the data"
_DECLARE = "; accuracy: {interface: any} allows that"
# Of the largest output: rounding in another order, and one step of 8 bits in one layer or two.
_SAME_RUN = 1e-6
_SAME_IN_BATCH = {"fp32": 1e-3}
_SAME_IN_BATCH_COARSE = 5e-2


def verdicts(
    accuracy: Accuracy,
    settings: AccuracySettings | None,
    *,
    is_baseline: bool = False,
) -> tuple[Verdict, ...]:
    """All verdicts on accuracy, by name.

    `outputs`: finite, alive in each part, with the baseline's interface, comparable with it; blocks.
    `accuracy`: the policy that decides; blocks. The other policy, `fixed-set` or `non-inferiority`, for
    information. The baseline has no bar to pass, without labels nobody has: outputs that then lie far
    from the baseline's (see `unlabelled`) are inconclusive, as advice. `labels`, where the baseline
    does not do better than guessing, blocks. Advice that is given only where there is reason: `batch
    invariance`, `determinism`, `saturation` (INT8 weights of full range meet a CPU without VNNI),
    `scores` (a fixed threshold lets through over 5 % more or fewer), `samples` (many have the same
    content), `preparation` (not as the decoding expects) and `decoding` (what it left out, or could
    not read).
    """
    answers = []
    if accuracy.output_error is not None:
        labelled = accuracy.drop is not None or is_baseline
        error = accuracy.output_error
        answers.append(_own_outputs(error) if is_baseline else _outputs(error, settings, labelled))
    if settings is not None and accuracy.drop is not None and not is_baseline:
        answers.extend(policies.judged(accuracy, settings))
    elif settings is not None and accuracy.output_error is not None and not is_baseline:
        answers.append(unjudged(f"{settings.metric} has no value for it or for the baseline", settings))
    if accuracy.stability is not None:
        answers.extend(_stability(accuracy.stability, accuracy.precision or ""))
    moved = scores.advice(accuracy.scores) if accuracy.scores and not is_baseline else None
    if moved is not None:
        answers.append(_advice("scores", moved))
    saturates = saturation.warning(accuracy.full_range_weights, settings)
    if saturates is not None:
        answers.append(_advice("saturation", saturates))
    # What the baseline has too is said there.
    notes = [each for each in accuracy.decoding if is_baseline or each.kind == "misread"]
    for each in notes:
        advice = _advice("decoding", decoding.said(each))
        few = each.kind in _LIMITS and each.images < _FEW_IMAGES * accuracy.samples
        answers.append(advice.model_copy(update={"outcome": "accept"}) if few else advice)
    if is_baseline:
        for reason in accuracy.doubts:
            answers.append(_advice("labels", reason).model_copy(update={"blocking": True}))
        for remark in accuracy.data:
            outcome = "inconclusive" if remark.doubtful else "accept"
            answers.append(_advice(remark.about, remark.text).model_copy(update={"outcome": outcome}))
        answers.extend(_advice("preparation", reason) for reason in accuracy.remarks)
        if accuracy.distinct is not None and accuracy.distinct < _DIFFERENT * accuracy.samples:
            repeated = (
                f"only {accuracy.distinct} of {accuracy.samples} samples differ by content: intervals"
                " count samples with the same content once"
            )
            answers.append(_advice("samples", repeated))
    where = {"runner": accuracy.runner, "isa": accuracy.isa}
    return tuple(verdict.model_copy(update=where) for verdict in answers)


def unjudged(reason: str, settings: AccuracySettings | None) -> Verdict:
    """The verdict on what could not be compared with the baseline at all; it blocks."""
    name = "outputs" if settings is None else "accuracy"
    return _advice(name, f"not compared: {reason}").model_copy(update={"blocking": True})


def _own_outputs(error: OutputError) -> Verdict:
    """The verdict on outputs by themselves: finite and not constant."""
    if not error.finite:
        return _answer("reject", f"the outputs hold NaN or infinite values{_LOOK}")
    if error.constant:
        return _answer("reject", f"the outputs are the same for every sample{_LOOK}")
    if error.baseline_constant:
        return _answer("reject", f"the outputs are all zero{_LOOK}")
    return _answer("accept", _SOUND)


def _outputs(error: OutputError, settings: AccuracySettings | None, labelled: bool) -> Verdict:
    """The verdict on a variant's outputs: sound by themselves, and comparable with the baseline's."""
    same = settings is None or settings.interface == "same"
    changes = [interface.said(change) for change in error.changes]
    if not error.finite:
        also = "" if error.baseline_finite else f", the baseline's too{_LOOK}"
        return _answer("reject", f"the outputs hold NaN or infinite values{also}")
    if error.infinite_elsewhere:
        return _answer("reject", f"the outputs are infinite at other places than the baseline's{_LOOK}")
    if error.constant:
        also = f", the baseline's too{_LOOK}" if error.baseline_constant else ""
        which = "" if also or (dead := unlabelled.dead(error)) is None else f": {dead}"
        return _answer("reject", f"the outputs are the same for every sample{also or which}")
    if not error.baseline_finite or error.baseline_constant:
        what = (
            "are the same for every sample" if error.baseline_finite else "hold NaN or infinite values"
        )
        return _answer("inconclusive", f"the baseline's outputs {what}: they are no valid reference")
    if changes and same:
        broken = any(not change.comparable for change in error.changes)
        reason = f"another interface than the baseline's: {'; '.join(changes)}{_DECLARE}"
        return _answer("reject" if broken else "inconclusive", reason)
    listed = f"; {'; '.join(changes)}" if changes else ""
    if not error.compared:
        reason = "finite; they have no values that can be compared one by one"
        if labelled:
            return _answer("accept", reason + listed)
        if error.detections is None or not error.detections.confident:
            reason = "no value can be compared with the baseline's, and no labels judge them"
            return _answer("inconclusive", reason + listed)
        accepted = _answer("accept", f"{reason}; {unlabelled.scope(error)}{listed}")
        return unlabelled.doubt(error) or accepted
    died = unlabelled.dead(error)
    if died is not None:
        return _answer("reject", died)
    if labelled:
        return _answer("accept", f"{_SOUND}{listed}")
    sound = f"{_SOUND}; {unlabelled.scope(error)}{listed}"
    return unlabelled.doubt(error) or _answer("accept", sound)


def _answer(outcome: Outcome, reason: str) -> Verdict:
    return Verdict(name="outputs", outcome=outcome, blocking=True, reason=reason)


def _stability(stability: Stability, precision: str) -> Iterator[Verdict]:
    allowed = _SAME_IN_BATCH.get(precision, _SAME_IN_BATCH_COARSE)
    if stability.repeat_error > _SAME_RUN:
        yield _advice(
            "determinism",
            f"two runs of the same {stability.samples} samples differ by"
            f" {stability.repeat_error:.2g} of the largest output",
            limit=_SAME_RUN,
            actual=stability.repeat_error,
        )
    if stability.batch_error is not None and stability.batch_error > allowed:
        yield _advice(
            "batch invariance",
            "a sample's outputs depend on its batch: alone they differ by"
            f" {stability.batch_error:.2g} of the largest output from those in a batch of"
            f" {stability.samples}; causes are ranges computed at run time, and errors of exports",
            limit=allowed,
            actual=stability.batch_error,
        )


def _advice(name: str, reason: str, **figures: float) -> Verdict:
    return Verdict(name=name, outcome="inconclusive", blocking=False, reason=reason, **figures)
