"""Why INT8 does not pay here: what a profile of the best INT8 network says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from optcli.errors import OptcliError
from optcli.measure import profiling
from optcli.measure.profiling import Profile
from optcli.pipeline import places
from optcli.pipeline.making import BuiltPlan
from optcli.pipeline.reporting import artifact_summary
from optcli.report.tuning_findings import int8_that_does_not_pay
from optcli.results.tuning import TuningTrial
from optcli.tuning.candidates import candidate_of
from optcli.tuning.trial_runner import TrialRunner, artifact, subject
from optcli.tuning.trials import Trials

_NAME = "int8"
# What integers pay for, and what they save nothing of; the others say nothing of INT8.
_CAUSES = ("quantize", "reformat", "overhead", "copies", "unexplained")


def cause_of_int8(done: Sequence[TuningTrial], trials: Trials) -> str | None:
    """Where the time of an INT8 network goes that is no faster than in float; None where it pays.

    It is also None where a profile cannot be taken or names no cause: that costs nobody the search.
    """
    slow = int8_that_does_not_pay(done)
    if slow is None:
        return None
    trial_runner = trials.trial_runner
    try:
        made = trial_runner.make(trials.variants_of({_NAME: candidate_of(slow).written()}))
        profile = _profiled(made, trial_runner, min(trials.batch_sizes))
    except OptcliError as error:
        trial_runner.observer.warned("tune", f"INT8 could not be profiled: {error.message}")
        return None
    findings = [each for each in profile.findings if each.kind in _CAUSES]
    if not findings:
        return None
    return f"{findings[0].message} (profile of {slow.label})"


def _profiled(made: BuiltPlan, trial_runner: TrialRunner, batch_size: int) -> Profile:
    one, recipe = subject(made, _NAME), made.plan.recipe
    built = artifact(made, _NAME)
    folder: Path = trial_runner.folder
    request = profiling.ProfileRequest(
        variant=_NAME,
        recipe=recipe.name,
        summary=artifact_summary(built, str(built.path)),
        artifact=built,
        runner=one.runner_name,
        options=one.options,
        inputs=recipe.inputs,
        batch_size=batch_size,
        trace=folder / "profiles" / f"{_NAME}.trace.json",
        seed=recipe.seed,
    )
    with places.holding_measurement_lock("tune › profile", trial_runner.observer):
        return profiling.measure(request, folder / "logs" / f"{_NAME}.profile.log")
