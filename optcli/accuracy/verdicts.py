"""Is it right enough: the accuracy bar, and outputs that no bar need be asked about."""

from __future__ import annotations

from optcli.results import Accuracy, OutputError, Verdict
from optcli.settings import AccuracySettings

# A drop of exactly the bar passes, whatever the last bit of the division says.
_ROUNDING = 1e-12
# Noise with a hundredth of the signal's power. Labels say what that costs; without them nobody can.
_DOUBTFUL_DB = 20.0


def verdicts(
    accuracy: Accuracy, settings: AccuracySettings | None, *, is_baseline: bool = False
) -> tuple[Verdict, ...]:
    """`outputs`: finite and not constant. `accuracy`: the drop on this fixed set is within `max_drop`.

    Both block. The baseline has no bar to pass, without labels nobody has: outputs that then lie far
    from the baseline's (signal to noise below 20 dB) are inconclusive, as advice.
    """
    found = []
    if accuracy.output_error is not None:
        labelled = accuracy.drop is not None or is_baseline
        found.append(_outputs(accuracy.output_error, is_baseline, labelled))
    if settings is not None and accuracy.drop is not None and not is_baseline:
        found.append(_fixed_set(accuracy, settings.max_drop))
    return tuple(found)


def _fixed_set(accuracy: Accuracy, max_drop: float) -> Verdict:
    """The set is the definition: the drop on it decides, without a test (MLPerf's quality targets)."""
    assert accuracy.drop is not None
    assert accuracy.value is not None
    assert accuracy.baseline is not None
    drop = accuracy.drop
    accepted = drop.value <= max_drop + _ROUNDING
    change = f"{abs(drop.value):.2%} {'below' if drop.value > 0 else 'above'}".replace("%", " points")
    against = (
        f"{change} the baseline's {_percent(accuracy.baseline)}" if drop.value else "as the baseline"
    )
    bar = f"{max_drop:.2%}".replace("%", " points")
    return Verdict(
        name="accuracy",
        outcome="accept" if accepted else "reject",
        blocking=True,
        limit=max_drop,
        actual=drop.value,
        interval=None if drop.low is None or drop.high is None else (drop.low, drop.high),
        reason=(
            f"{accuracy.metric} {_percent(accuracy.value)}, {against} ({accuracy.regressed} lost,"
            f" {accuracy.improved} gained of {accuracy.samples}), {'within' if accepted else 'over'}"
            f" the {bar} allowed"
        ),
    )


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


def _percent(fraction: float) -> str:
    return f"{fraction:.2%}".replace("%", " %")
