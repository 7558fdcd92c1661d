"""Verdicts on accuracy: by the accuracy bar, and on outputs, with labels and without.

Without labels a dead part is a finding all the same. All else is a doubt that only labels can clear.
"""

from __future__ import annotations

from collections.abc import Iterator

from optcli.accuracy import decoding, differences, policies, saturation
from optcli.accuracy.differences import FAR_DB
from optcli.errors import counted, plural
from optcli.outputs import WORDS
from optcli.results.outcomes import (
    Accuracy,
    DetectionChange,
    Outcome,
    OutputError,
    PartDistance,
    Stability,
    Verdict,
)
from optcli.settings.accuracy import AccuracySettings

# The share of samples that differ by content, below which it is said.
_DIFFERENT = 0.95
# Where limits leave objects out of fewer images than this share, a report says so, and doubts nothing.
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
    from the baseline's (see `doubt`) are inconclusive, as advice. `labels`, where the baseline
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
    moved = differences.score_advice(accuracy.scores) if accuracy.scores and not is_baseline else None
    if moved is not None:
        answers.append(_advice("scores", moved))
    saturates = saturation.warning(accuracy.full_range_weights, settings)
    if saturates is not None:
        answers.append(_advice("saturation", saturates))
    # What the baseline has too is said there.
    notes = [each for each in accuracy.decoding if is_baseline or each.kind == "misread"]
    for each in notes:
        advice = _advice("decoding", decoding.note_text(each))
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
    changes = [differences.change_text(change) for change in error.changes]
    if not error.finite:
        also = "" if error.baseline_finite else f", the baseline's too{_LOOK}"
        return _answer("reject", f"the outputs hold NaN or infinite values{also}")
    if error.infinite_elsewhere:
        return _answer("reject", f"the outputs are infinite at other places than the baseline's{_LOOK}")
    if error.constant:
        also = f", the baseline's too{_LOOK}" if error.baseline_constant else ""
        which = "" if also or (dead := dead_parts(error)) is None else f": {dead}"
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
        accepted = _answer("accept", f"{reason}; {scope(error)}{listed}")
        return doubt(error) or accepted
    died = dead_parts(error)
    if died is not None:
        return _answer("reject", died)
    if labelled:
        return _answer("accept", f"{_SOUND}{listed}")
    sound = f"{_SOUND}; {scope(error)}{listed}"
    return doubt(error) or _answer("accept", sound)


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


# Noise with a hundredth of the signal's power. Labels say what that costs; without them nobody can.
DOUBTFUL_DB = 20.0
# Values that are a part's times less or more than this, as after scores were halved,
_SCALE = 0.1
# or that lie beside them by this share of their range.
_SHIFT = 0.01
# Of the confident detections of a baseline so many must be there, so many with their class,
_FOUND, _SAME = 0.9, 0.95
# their scores on average within this share, their edges on average within this share of a box's size,
_SCORES, _EDGES = 0.1, 0.03
# and so many may be where the baseline sees nothing.
_NEW = 0.1
# Their masks must share so much, over all pixels, and so few may be others,
_MASKS, _OTHER_MASKS = 0.9, 0.1
# keypoints lie so near in parts of the object's size, and so many be seen that the baseline sees,
_KEYPOINTS, _SEEN = 0.05, 0.9
# and rotated boxes be turned by so little, in degrees.
_TURN = 5.0


def dead_parts(error: OutputError) -> str | None:
    """Which parts vary in the baseline and are constant here, in a sentence; None where all live."""
    sentences = [_dead(part) for part in error.parts if part.dead_count]
    return "; ".join(sentences) or None


def _dead(part: PartDistance) -> str:
    whole = part.of is not None and part.dead_count == part.of[1] - part.of[0]
    listed = ", ".join(map(str, part.dead)) + (", ..." if part.dead_count > len(part.dead) else "")
    if part.axis is None:
        return f"{named(part)}: constant, and they vary in the baseline"
    if whole and part.dead_count > 1:
        return f"{named(part)}: all {part.dead_count} are constant, and they vary in the baseline"
    of = f"{part.dead_count} " + ("entries are" if part.dead_count > 1 else "entry is")
    return (
        f"{named(part)}: {of} constant along dimension {part.axis} ({listed}), and"
        f" {'they vary' if part.dead_count > 1 else 'it varies'} in the baseline"
    )


def named(part: PartDistance) -> str:
    """A part in words: `output 'output0', scores (4 to 83 of dimension 1)`."""
    what = "" if part.part == "unknown" else WORDS[part.part]
    where = ""
    if part.of is not None and part.axis is not None:
        first, last = part.of[0], part.of[1] - 1
        where = f"{first} to {last}" if last > first else f"{first}"
        where += f" of dimension {part.axis}"
        if not what:
            where += f", values from {part.low:.3g} to {part.high:.3g}"
    text = f"output {part.output!r}" + (f", {what}" if what else "")
    return text + (f" ({where})" if where else "")


def doubt(error: OutputError) -> Verdict | None:
    """The verdict where outputs lie so far from the baseline's that only labels could tell the cost.

    Where there are confident detections, these decide: a detector's maps hold thousands of candidates
    that nobody reads.
    """
    detections = error.detections
    actual: float | None
    if detections is not None and detections.confident:
        reasons = list(_lost(detections))
        limit, actual = _SAME, detections.same / detections.confident
    else:
        reasons = [*_large_errors(error), *_far_parts(error.parts)]
        decibel = (error.sqnr_db, error.worst.sqnr_db if error.worst else None)
        limit, actual = DOUBTFUL_DB, min((db for db in decibel if db is not None), default=None)
    if not reasons:
        return None
    return Verdict(
        name="outputs",
        outcome="inconclusive",
        blocking=False,
        limit=limit,
        actual=actual,
        reason=f"{'; '.join(reasons)}; only labels can show what that costs in accuracy",
    )


def scope(error: OutputError) -> str:
    """On what an acceptance without labels rests, and what it cannot see."""
    detections = error.detections
    if detections is None:
        return (
            f"on {error.samples} samples their values lie near the baseline's; what that costs in"
            " accuracy only labels show"
        )
    seen = counted(detections.images, "image")
    if detections.guessed:
        seen += ", with outputs decoded as their form suggests, which is a guess,"
    if not detections.confident:
        return (
            f"on {seen} the baseline has no detection with a score of {detections.score:g} or more:"
            " nothing is known of detections, and labels or other images would show it"
        )
    return (
        f"on {seen} {detections.same} of the baseline's {counted(detections.confident, 'detection')}"
        f" with a score of {detections.score:g} or more are the same; what the baseline misses only"
        " labels show"
    )


def _large_errors(error: OutputError) -> Iterator[str]:
    """Over all values of an output, and by sample."""
    worst = error.worst
    decibel = (error.sqnr_db, worst.sqnr_db if worst else None)
    lowest = min((db for db in decibel if db is not None), default=None)
    if worst is not None and worst.sqnr_db is None and worst.max_abs > 0:
        yield f"output {worst.output!r} is zero for the baseline and not here"
    elif lowest is not None and lowest < DOUBTFUL_DB:
        of = f"output {worst.output!r} lies" if worst and lowest == worst.sqnr_db else "they lie"
        yield f"{of} far from the baseline's ({lowest:.1f} dB, under {DOUBTFUL_DB:g})"
    elif error.far_samples:
        lies = plural(error.far_samples, "lies", "lie")
        yield (
            f"{error.far_samples} of {counted(error.samples or 0, 'sample')} {lies} far from the"
            f" baseline's (under {FAR_DB:g} dB)"
        )


def _far_parts(parts: tuple[PartDistance, ...]) -> Iterator[str]:
    """Parts by themselves, where the values of an output are not all of one kind."""
    several = {part.output for part in parts if part.of is not None}
    for part in parts:
        if part.part == "class_numbers":
            differing = 0.0 if part.sqnr_db is None else 10 ** (-part.sqnr_db / 10)
            if differing > 1 - _SAME:
                yield f"{named(part)}: {differing:.0%} of them differ"
        elif _scaled(part):
            yield f"{named(part)}: on average {part.scale:.2f} times the baseline's values"
        elif part.output in several and part.sqnr_db is not None and part.sqnr_db < DOUBTFUL_DB:
            yield (
                f"{named(part)}: far from the baseline's ({part.sqnr_db:.1f} dB, under {DOUBTFUL_DB:g})"
            )
        elif part.output in several and part.shift is not None and abs(part.shift) > _SHIFT:
            yield f"{named(part)}: shifted by {abs(part.shift):.1%} of their range"
        elif part.wrong_count:
            listed = ", ".join(map(str, part.wrong))
            more = ", ..." if part.wrong_count > len(part.wrong) else ""
            yield f"{named(part)}: hardly anything in common with the baseline's in {listed}{more}"


def _scaled(part: PartDistance) -> bool:
    """Whether most of what is wrong is that the values are multiples of the baseline's."""
    if part.scale is None or part.sqnr_db is None or abs(part.scale - 1) <= _SCALE:
        return False
    return (part.scale - 1) ** 2 >= 0.5 * 10 ** (-part.sqnr_db / 10)


def _lost(change: DetectionChange) -> Iterator[str]:
    """What became of the baseline's confident detections."""
    confident = counted(change.confident, "detection")
    sure = f"of the baseline's {confident} with a score of {change.score:g} or more"
    if change.same_place < _FOUND * change.confident:
        yield (f"it finds {change.same_place / change.confident:.0%} {sure}, less than {_FOUND:.0%}")
    elif change.same < _SAME * change.confident and change.confident - change.same > 1:
        yield f"{change.same} {sure} have one of the same class in the same place, under {_SAME:.0%}"
    if change.score_ratio is not None and abs(change.score_ratio - 1) > _SCORES:
        yield f"the scores of the same detections are {change.score_ratio:.2f} times the baseline's"
    if change.shift is not None and change.shift > _EDGES:
        yield f"their edges are shifted by {change.shift:.1%} of the boxes' size on average"
    if change.new > _NEW * change.confident and change.new > 1:
        yield f"{change.new} detections are new, where the baseline sees nothing"
    yield from _changed_objects(change)
    for label, same, of in change.classes[:3]:
        yield f"of class {label} {same} of {of} are left"


def _changed_objects(change: DetectionChange) -> Iterator[str]:
    """What became of the masks, keypoints and angles of the same detections."""
    if change.mask_iou is not None and change.mask_iou < _MASKS:
        yield f"the masks of the same detections overlap by {change.mask_iou:.0%}, under {_MASKS:.0%}"
    elif change.other_masks > max(1, _OTHER_MASKS * change.same):
        yield f"{change.other_masks} of the same {counted(change.same, 'detection')} have another mask"
    distance = change.keypoint_distance
    if distance is not None and distance > _KEYPOINTS:
        yield (
            f"the keypoints of the same detections lie {distance:.1%} of an object's size apart, over"
            f" {_KEYPOINTS:.0%}"
        )
    elif change.moved_keypoints:
        listed = ", ".join(map(str, change.moved_keypoints[:5]))
        yield f"of the same detections the keypoints {listed} lie elsewhere"
    if change.keypoints_seen is not None and change.keypoints_seen < _SEEN:
        yield f"of the keypoints that the baseline sees {change.keypoints_seen:.0%} are seen"
    if change.turn_degrees is not None and change.turn_degrees > _TURN:
        turn = f"{change.turn_degrees:.0f} degrees"
        yield f"the rotated boxes of the same detections are turned by {turn}"
