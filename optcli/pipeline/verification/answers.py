"""Verdicts without a build: on answers that another machine gave, and on a report under another bar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from optcli import accuracy, environment
from optcli.accuracy.answers import WANTED
from optcli.errors import InputError, MissingError, OptcliError, UsageError, shown_path
from optcli.files import regular_files
from optcli.observer import Observer, Silent
from optcli.pipeline import reporting
from optcli.pipeline.accuracy import EvaluationContext, Subject, compare_all, subjects
from optcli.pipeline.execute import BuildSettings
from optcli.pipeline.making import BuiltPlan, Phases, make, planned
from optcli.pipeline.terms import require_evaluation
from optcli.recipe import load
from optcli.results import Accuracy, Report, VariantReport, Verdict
from optcli.results.outcomes import ACCURACY_VERDICTS
from optcli.store import Store


def verify_answers(
    answers: Path,
    recipe: Path,
    *,
    name: str | None = None,
    partial: bool = False,
    overrides: Sequence[str] = (),
    trust: bool = False,
    remeasure: bool = False,
    jobs: int = 1,
    timeout_s: float = 3600.0,
    store: Path | Store | None = None,
    observer: Observer | None = None,
) -> Report:
    """Judge a file of answers against the recipe's baseline, on the same samples; no latency.

    What a build has left of the baseline in the store is taken, else it is built and evaluated. `name`
    is the variant's, by default the file's. With `partial` only samples count that the file answers.
    Raises what a build raises, `UsageError` without evaluation data or for the baseline's own name, and
    `InputError` for answers that cannot be read or do not fit.
    """
    began = environment.now()
    observer = observer or Silent()
    store = Store.of(store)
    name = name or answers.stem
    if wrong := regular_files.problem(answers, str(answers)):
        raise InputError(wrong, place="--predictions", hint=WANTED)
    read = load(recipe, overrides)
    baseline = read.baseline or next(iter(read.variants))
    require_evaluation(read, recipe, "to judge on")
    if name == baseline:
        raise UsageError(
            f"the baseline of the recipe has the name {name!r}, too",
            place="--name",
            hint="give the answers another name: --name phone",
        )
    with store.connected(observer.warned):
        plan = planned(recipe, store, overrides, [baseline])
        made = make(
            plan,
            store,
            observer,
            BuildSettings(jobs, True, timeout_s, trust, None),
            Phases(),
            remeasure=False,
        )
        base = next((s for s in subjects(made.plan, made.artifacts) if s.name == baseline), None)
        if base is None:
            raise _not_run(made, baseline)
        base = replace(base, answered=answers if partial else None)
        given = replace(base, name=name, answers=answers)
        context = EvaluationContext(
            made.plan.recipe,
            made.plan.role_keys["evaluation"],
            store,
            store.log_folder("verify"),
            observer,
            timeout_s,
            jobs,
            remeasure,
        )
        judged, failures = compare_all([base, given], baseline, context)
    store.digests.save()
    for problem in failures.values():
        if isinstance(problem, InputError):  # of the data or of the file: they can judge nothing
            raise problem
    judged = {k: _elsewhere(v) if k == name else v for k, v in judged.items()}
    verdicts = {
        each: accuracy.verdicts(figures, read.accuracy, is_baseline=each == baseline)
        for each, figures in judged.items()
    }
    if name in judged:
        whole = made.sample_counts["evaluation"]
        verdicts[name] = (*verdicts[name], *_samples(judged[name], whole, partial=partial))
    variants = {
        each.name: _row(
            each, judged.get(each.name), verdicts.get(each.name, ()), failures.get(each.name)
        )
        for each in (base, given)
    }
    codes = [error.exit_code for error in failures.values()]
    return reporting.report(
        reporting.recipe_summary(read),
        baseline,
        variants,
        packages=base.runner.needs.packages,
        started=began,
        code=reporting.exit_code((v for of_one in verdicts.values() for v in of_one), codes),
    )


def _not_run(made: BuiltPlan, baseline: str) -> OptcliError:
    """Why there is no baseline to compare with."""
    variant = next(each for each in made.plan.variants if each.name == baseline)
    for step in variant.steps:
        result = made.done.get(step.key)
        if result is not None and result.error is not None:
            return result.error
    missing = next(iter((*variant.missing, *variant.unmeasurable)))
    return MissingError(missing.what, place=baseline, hint=missing.hint)


def _elsewhere(figures: Accuracy) -> Accuracy:
    """Without the traits of this machine, which computed nothing of it."""
    return figures.model_copy(update={"isa": None, "runner": None, "precision": None})


def _samples(figures: Accuracy, whole: int, *, partial: bool) -> list[Verdict]:
    """On which samples the answers were judged, where that is not all of them."""
    reasons = list(figures.remarks)
    if partial:
        reasons.append(f"judged on {figures.samples} of {whole} samples, those that the file answers")
    return [
        Verdict(name="samples", outcome="inconclusive", blocking=False, reason=reason)
        for reason in reasons
        if not partial or figures.samples < whole or reason in figures.remarks
    ]


def _row(
    subject: Subject,
    figures: Accuracy | None,
    verdicts: tuple[Verdict, ...],
    problem: OptcliError | None,
) -> VariantReport:
    if subject.answers is None:
        runner = {"name": subject.runner_name, "requested": subject.options}
        runner["precision"] = (figures.precision if figures else None) or subject.artifact.precision
        artifact = reporting.artifact_summary(subject.artifact, str(subject.artifact.path))
    else:
        runner, artifact = {"name": f"answers of {subject.answers.name}"}, None
    nothing = None if figures or problem else "the baseline could not be evaluated"
    return VariantReport(
        status="failed" if problem else "built" if figures else "skipped",
        reason=str(problem) if problem else nothing,
        artifact=artifact,
        runner=runner,
        accuracy=figures,
        verdicts=verdicts,
    )


def rejudged(report: Report, place: Path, overrides: Sequence[str]) -> Report:
    """The report with its verdicts on accuracy as the recipe with `overrides` has them.

    Without one of `accuracy` it is left as it is. Raises `UsageError` where the recipe is gone, or
    where the metric or the confidence is another one, which only a build can work out.
    """
    if not any(each.strip().startswith("accuracy") for each in overrides):
        return report
    path = Path(report.recipe.path)
    hint = f"optcli build {shown_path(path)} with the same --set"
    if not path.is_file():
        raise UsageError(
            f"the recipe of this report is gone: {shown_path(path)}", place=str(place), hint=hint
        )
    settings = load(path, overrides).accuracy
    judged = {name: v.accuracy for name, v in report.variants.items() if v.accuracy is not None}
    for figures in judged.values():
        if settings is None or (figures.metric is not None and settings.metric != figures.metric):
            wanted = settings.metric if settings else "nothing"
            raise UsageError(
                f"the build judged by {figures.metric}, wanted {wanted}", place="--set", hint=hint
            )
        if figures.drop is not None and settings.confidence != figures.confidence:
            raise UsageError(
                f"the build's intervals are for a confidence of {figures.confidence:g},"
                f" wanted {settings.confidence:g}",
                place="--set accuracy.confidence",
                hint=hint,
            )
    variants = dict(report.variants)
    for name, figures in judged.items():
        fresh = accuracy.verdicts(figures, settings, is_baseline=name == report.baseline)
        others = (v for v in report.variants[name].verdicts if v.name not in ACCURACY_VERDICTS)
        variants[name] = variants[name].model_copy(update={"verdicts": (*fresh, *others)})
    return report.model_copy(update={"variants": variants})
