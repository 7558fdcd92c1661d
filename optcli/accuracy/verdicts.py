"""Is it right enough: the accuracy bar, and outputs that no bar need be asked about."""

from __future__ import annotations

from collections.abc import Iterator

from optcli.accuracy import policies, saturation
from optcli.results.outcomes import Accuracy, OutputError, Stability, Verdict
from optcli.settings.accuracy import AccuracySettings

# Noise with a hundredth of the signal's power. Labels say what that costs; without them nobody can.
_DOUBTFUL_DB = 20.0
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
    """All that accuracy has to say; the verdicts are named as follows.

    `outputs`: finite and not constant; blocks. `accuracy`: the policy that decides; blocks. The
    other policy, `fixed-set` or `non-inferiority`, for information. The baseline has no bar to pass,
    without labels nobody has: outputs that then lie far from the baseline's (signal to noise below
    20 dB) are inconclusive, as advice. Advice that is given only where there is reason: `batch
    invariance`, `determinism`, `saturation` (INT8 weights of full range meet a CPU without VNNI), and
    `labels`, where the baseline does not do better than guessing.
    """
    found = []
    if accuracy.output_error is not None:
        labelled = accuracy.drop is not None or is_baseline
        found.append(_outputs(accuracy.output_error, is_baseline, labelled))
    if settings is not None and accuracy.drop is not None and not is_baseline:
        found.extend(policies.judged(accuracy, settings))
    if accuracy.stability is not None:
        found.extend(_stability(accuracy.stability, accuracy.precision or ""))
    saturates = saturation.warning(accuracy.full_range_weights, settings)
    if saturates is not None:
        found.append(_advice("saturation", saturates, None))
    if is_baseline:
        found.extend(_advice("labels", reason, None) for reason in accuracy.doubts)
    where = {"runner": accuracy.runner, "isa": accuracy.isa}
    return tuple(verdict.model_copy(update=where) for verdict in found)


def _outputs(error: OutputError, is_baseline: bool, labelled: bool) -> Verdict:
    reason = ""
    if not error.finite:
        also = not is_baseline and not error.baseline_finite
        reason = "the outputs hold NaN or infinite values" + (", the baseline's too" if also else "")
    elif error.constant:
        also = not is_baseline and error.baseline_constant
        reason = "the outputs are the same for every sample" + (", the baseline's too" if also else "")
    if reason and (is_baseline or ", the baseline's too" in reason):
        reason += ": look at the weights and the data"
    if not reason and not labelled and error.sqnr_db is not None and error.sqnr_db < _DOUBTFUL_DB:
        return Verdict(
            name="outputs",
            outcome="inconclusive",
            blocking=False,
            limit=_DOUBTFUL_DB,
            actual=error.sqnr_db,
            reason=(
                f"they lie far from the baseline's ({error.sqnr_db:.1f} dB, under {_DOUBTFUL_DB:g});"
                " without labels it cannot be told what that costs"
            ),
        )
    return Verdict(
        name="outputs",
        outcome="reject" if reason else "accept",
        blocking=True,
        reason=reason or "finite, and they depend on the input",
    )


def _stability(stability: Stability, precision: str) -> Iterator[Verdict]:
    allowed = _SAME_IN_BATCH.get(precision, _SAME_IN_BATCH_COARSE)
    if stability.repeat_error > _SAME_RUN:
        yield _advice(
            "determinism",
            f"two runs of the same {stability.samples} samples differ by"
            f" {stability.repeat_error:.2g} of the largest output",
            (_SAME_RUN, stability.repeat_error),
        )
    if stability.batch_error is not None and stability.batch_error > allowed:
        yield _advice(
            "batch invariance",
            "a sample's outputs depend on its batch: alone they differ by"
            f" {stability.batch_error:.2g} of the largest output from those in a batch of"
            f" {stability.samples}; ranges found at run time do that, and errors of exports",
            (allowed, stability.batch_error),
        )


def _advice(name: str, reason: str, bounds: tuple[float, float] | None) -> Verdict:
    limit, actual = bounds or (None, None)
    return Verdict(
        name=name, outcome="inconclusive", blocking=False, limit=limit, actual=actual, reason=reason
    )
