"""Accuracy in a build: every artifact on the same samples, kept by what decides it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

from optcli import accuracy, environment, outputs
from optcli.accuracy import Evaluation, EvaluationRequest
from optcli.accuracy.evaluation import AnswersFile
from optcli.accuracy.metrics import reads
from optcli.artifact import Artifact, own_inputs
from optcli.errors import InputError, OptcliError
from optcli.files.digest import of_value
from optcli.observer import Observer, Silent
from optcli.pipeline import keys
from optcli.pipeline.admission import EvaluationAdmission, RecordAdmission
from optcli.pipeline.decoding import least_score, of_own_form, own_postprocess, with_decoding
from optcli.pipeline.doubted_answers import Looking, remarks_of
from optcli.pipeline.places import EvaluationOrder, Nodes
from optcli.pipeline.plan import BuildPlan
from optcli.pipeline.prepared import PreparedSamples
from optcli.pipeline.terms import code_of, evaluated_on, judged_by, judging_code, judging_files
from optcli.recipe import Recipe
from optcli.results import Accuracy
from optcli.results.outcomes import DataRemark
from optcli.runners import Runner
from optcli.settings import TensorSpec
from optcli.store import Entry, Store, key_of

EVALUATION = "evaluation"
_COMPARISON = "comparison"
# Of an evaluation that takes no longer, starting a process and its libraries is the greater part.
_SHORT_S = 10.0
_DECIDES = (
    "policy",
    "max_drop",
    "min_ratio",
    "preset",
    "margin",
    "target_isa",
    "confidence",
    "interface",
    "expected",
)


@dataclass(frozen=True)
class Subject:
    """What is judged: an artifact in a runner. `feeds` holds its inputs where their names differ.

    `interpreter` is another Python to run it in, `versions` those of the runner's packages there. With
    `answers`, which another machine gave, these are judged; the artifact is then the baseline's.
    `answered`: only the samples count that this file answers.
    """

    name: str
    artifact: Artifact
    runner_name: str
    runner: Runner
    options: dict[str, Any]
    feeds: tuple[TensorSpec, ...] | None = None
    interpreter: str | None = None
    versions: Mapping[str, str | None] | None = None
    answers: Path | None = None
    answered: Path | None = None


@dataclass(frozen=True)
class EvaluationContext:
    """What all subjects of one evaluation share. `samples` is the key of the evaluation set.

    With `nodes` other machines evaluate parts of the set, else `jobs` processes of this one. `guessed`:
    nobody says that the recipe's `postprocess` is right.
    """

    recipe: Recipe
    samples: str
    store: Store
    logs: Path
    observer: Observer
    timeout_s: float
    jobs: int = 1
    remeasure: bool = False
    nodes: Nodes | None = None
    guessed: bool = False


def judge(
    plan: BuildPlan, artifacts: Mapping[str, Artifact], context: EvaluationContext
) -> tuple[dict[str, Accuracy], dict[str, OptcliError]]:
    """Accuracy of every variant that was built and can run here, and why others have none.

    Without `data.evaluation` nothing is judged; without `accuracy:` only outputs are compared.
    """
    if "evaluation" not in plan.recipe.data:
        return {}, {}
    return compare_all(subjects(plan, artifacts), plan.baseline, context)


def subjects(plan: BuildPlan, artifacts: Mapping[str, Artifact]) -> list[Subject]:
    """The variants that were built and can run here."""
    return [
        Subject(v.name, artifacts[v.name], v.runner_name, v.runner, v.runner_options(plan.threads))
        for v in plan.variants
        if v.name in artifacts and not v.unmeasurable
    ]


def evaluations(
    plan: BuildPlan, artifacts: Mapping[str, Artifact], context: EvaluationContext
) -> tuple[dict[str, str], float]:
    """The key of each evaluation that `judge` has used, by variant, and the score that counts.

    The store may have lost one: a comparison that is kept needs none.
    """
    context = _decoded(context, artifacts[plan.baseline], Silent())
    judging = _Judging(context, None)
    keys_of = {each.name: key_of(judging._of(each)) for each in subjects(plan, artifacts)}
    return keys_of, least_score(context.recipe)


def compare_all(
    subjects: Sequence[Subject], baseline: str, context: EvaluationContext
) -> tuple[dict[str, Accuracy], dict[str, OptcliError]]:
    """Every subject beside the baseline, and what went wrong, by name.

    The baseline's outputs are computed once and kept by content. Where it cannot be evaluated there
    is nothing to compare with: the others then have neither, and `unjudged` is their verdict.
    """
    base = next((each for each in subjects if each.name == baseline), None)
    if base is not None:
        context = _decoded(context, base.artifact, context.observer)
    judging = _Judging(context, base)
    judged: dict[str, Accuracy] = {}
    failures: dict[str, OptcliError] = {}

    def judge_one(subject: Subject) -> None:
        try:
            judged[subject.name] = judging.accuracy_of(subject)
        except OptcliError as error:
            error.place = error.place or f"{subject.name} › accuracy"
            context.observer.failed(f"{subject.name} › accuracy", error.message)
            failures[subject.name] = error

    if judging.baseline is not None:
        judge_one(judging.baseline)
    if baseline in judged:
        judging.each(judge_one, [each for each in subjects if each.name != baseline])
    ordered = sorted(subjects, key=lambda each: each.name != baseline)
    accuracies = {each.name: judged[each.name] for each in ordered if each.name in judged}
    if accuracies:
        on = {
            "evaluated_on": evaluated_on(
                context.recipe, context.store.digests, (*_DECIDES, "batch_size")
            ),
            "data": judging.remarks(),
        }
        accuracies = {name: each.model_copy(update=on) for name, each in accuracies.items()}
    settings = context.recipe.accuracy
    others = [each for name, each in accuracies.items() if name != baseline]
    few = [flag for each in others if settings and (flag := accuracy.too_few(each, settings))]
    if few:
        context.observer.warned("accuracy", few[0].text)
    return accuracies, failures


def _decoded(context: EvaluationContext, baseline: Artifact, observer: Observer) -> EvaluationContext:
    recipe, guessed = with_decoding(context.recipe, baseline, observer)
    return replace(context, recipe=recipe, guessed=guessed)


class _Judging:
    def __init__(self, context: EvaluationContext, baseline: Subject | None) -> None:
        self._context, self.baseline = context, baseline
        self._ingredients: dict[str, dict[str, Any]] = {}
        self._fresh: set[str] = set()
        self._under_way = accuracy.UnderWay()
        # One at a time of those that are the same: the others take what it leaves.
        self._alone: dict[str, Lock] = {}
        self._took_s: dict[str, float] = {}

    def remarks(self) -> tuple[DataRemark, ...]:
        """What is known of the data, and what the baseline's answers say of them."""
        context, base = self._context, self.baseline
        assert base is not None
        ingredients = self._of(base)
        log = context.logs / f"{base.name}.preparations.log"
        looking = Looking(context.store, log, context.timeout_s)
        return remarks_of(
            context.recipe,
            key_of(ingredients),
            base.artifact.facts,
            looking,
            lambda: self._evaluation(base, ingredients).path,
            None if base.interpreter or base.answers else lambda path: self._request(base, path, None),
        )

    def each(self, judge_one: Callable[[Subject], None], subjects: Sequence[Subject]) -> None:
        """Judge all, several side by side where most of it is starting processes."""
        count = self._side_by_side(subjects)
        if count == 1:
            for subject in subjects:
                judge_one(subject)
            return
        for subject in subjects:
            self._alone.setdefault(key_of(self._of(subject)), Lock())
        with ThreadPoolExecutor(count) as pool:
            try:
                list(pool.map(judge_one, subjects))
            except BaseException:
                self._under_way.end()
                pool.shutdown(cancel_futures=True)
                raise

    def _side_by_side(self, subjects: Sequence[Subject]) -> int:
        """How many at once: several where the baseline was quick and nothing but this machine computes.

        Long evaluations have all cores for themselves already.
        """
        context, base = self._context, self.baseline
        took_s = self._took_s.get(base.name) if base is not None else None
        here = context.nodes is None and all(
            each.interpreter is None
            and not each.runner.requires().gpu
            and _jobs(each, context.jobs) == 1
            for each in subjects
        )
        return context.jobs if here and took_s is not None and took_s <= _SHORT_S else 1

    def accuracy_of(self, subject: Subject) -> Accuracy:
        """The subject beside the baseline."""
        with self._alone.get(key_of(self._of(subject)), nullcontext()):
            return self._accuracy_of(subject)

    def _accuracy_of(self, subject: Subject) -> Accuracy:
        context, base = self._context, self.baseline
        assert base is not None
        candidate, reference = self._of(subject), self._of(base)
        confidence = context.recipe.accuracy.confidence if context.recipe.accuracy else 0.95
        ingredients = {
            "step": _COMPARISON,
            "variant": key_of(candidate),
            "baseline": key_of(reference),
            "confidence": confidence,
            "outputs": {k: each.model_dump(mode="json") for k, each in context.recipe.outputs.items()},
        }
        key = key_of(ingredients)
        entry = context.store.get(
            _COMPARISON, key, anew=context.remeasure, admission=RecordAdmission(Accuracy)
        )
        if entry is not None:
            context.observer.cached(f"{subject.name} › accuracy")
            return Accuracy.model_validate(entry.record)
        result = self._compared(subject, candidate, reference, confidence)
        with context.store.work(_COMPARISON, key) as work:
            context.store.put(_COMPARISON, key, work, result.model_dump(mode="json"), ingredients)
        return result

    def _compared(
        self, subject: Subject, candidate: dict[str, Any], reference: dict[str, Any], confidence: float
    ) -> Accuracy:
        """What the evaluations of a subject and of the baseline say together."""
        base = self.baseline
        assert base is not None
        entries = self._evaluation(subject, candidate), self._evaluation(base, reference)
        try:
            return self._of_evaluations(subject, entries, confidence)
        except OptcliError:
            raise
        except Exception:
            fetched = [entry for entry in entries if entry.origin]
            if not fetched:
                raise
            # What others wrote may hold anything: it is made here, and compared again.
            for entry in fetched:
                self._context.store.discard(entry.kind, entry.key)
            entries = (
                self._evaluation(subject, candidate, fetch=False),
                self._evaluation(base, reference, fetch=False),
            )
            return self._of_evaluations(subject, entries, confidence)

    def _of_evaluations(
        self, subject: Subject, entries: tuple[Entry, Entry], confidence: float
    ) -> Accuracy:
        assert self.baseline is not None
        variant = Evaluation.load(entries[0].path)
        own = subject.answers is None
        if (subject.name == self.baseline.name or not own) and variant.class_order is not None:
            whose = "model" if own else "answers"
            raise InputError(
                f"the classes of the data and of the {whose} seem to be in another order:"
                f" {variant.class_order}",
                place="data.evaluation" if own else str(subject.answers),
                hint="labels: {offset: N}, or class_names: [...] with the classes in the model's order"
                if own
                else "number the classes as the data's labels do, from 0, or write their names",
            )
        recipe, baseline = self._context.recipe, Evaluation.load(entries[1].path)
        judged = recipe.accuracy
        meanings = outputs.describe(
            baseline.outputs,
            settings=recipe.outputs,
            postprocess=recipe.postprocess,
            metric_reads=reads(judged.metric) if judged else None,
            metric_output=judged.output if judged else None,
            metadata=baseline.metadata,
        )
        if not own:  # which outputs it writes is the other machine's choice
            given = {each.name for each in variant.outputs}
            left = tuple(each for each in baseline.outputs if not given or each.name in given)
            baseline = replace(baseline, outputs=left)
        figures = accuracy.compare(variant, baseline, confidence, meanings, least_score(recipe))
        return of_own_form(figures, subject.artifact)

    def _evaluation(
        self, subject: Subject, ingredients: dict[str, Any], *, fetch: bool = True
    ) -> Entry:
        """What an artifact made of the evaluation set; computed where it is not kept."""
        context, key = self._context, key_of(ingredients)
        anew = context.remeasure and key not in self._fresh
        admission = EvaluationAdmission() if fetch else None
        entry = context.store.get(EVALUATION, key, anew=anew, admission=admission)
        if entry is not None:
            return entry
        step = f"{subject.name} › accuracy"
        context.observer.started(step)
        began = time.monotonic()
        samples = PreparedSamples(context.store, context.samples, context.recipe.inputs)
        with context.store.lock(EVALUATION, key), context.store.work(EVALUATION, key) as work:
            scratch = work / "evaluation"
            log = context.logs / f"{subject.name}.accuracy.log"
            elsewhere = self._elsewhere(subject, ingredients, step, log, work.parent.parent)
            request = self._request(subject, scratch, samples.find())
            accuracy.evaluate(
                request,
                context.observer,
                step=step,
                log=log,
                timeout_s=context.timeout_s,
                interpreter=subject.interpreter,
                elsewhere=elsewhere,
                under_way=self._under_way,
            )
            samples.take(scratch / "prepared")
            for path in scratch.iterdir():
                shutil.move(path, work / path.name)
            scratch.rmdir()
            entry = context.store.put(EVALUATION, key, work, {}, ingredients)
        self._fresh.add(key)
        self._took_s[subject.name] = time.monotonic() - began
        context.observer.finished(step, self._took_s[subject.name])
        return entry

    def _answers(self, subject: Subject) -> AnswersFile | None:
        """The file of a subject's answers, with the outputs that the baseline has."""
        if subject.answers is None:
            return None
        assert self.baseline is not None
        entry = self._evaluation(self.baseline, self._of(self.baseline))
        outputs = tuple((each.name, each.shape) for each in Evaluation.load(entry.path).outputs)
        return AnswersFile(subject.answers, partial=subject.answered is not None, outputs=outputs)

    def _request(self, subject: Subject, out: Path, prepared: Path | None) -> EvaluationRequest:
        context, recipe, facts = self._context, self._context.recipe, subject.artifact.facts
        shared = (inputs := own_inputs(facts, recipe.inputs)) == recipe.inputs
        return EvaluationRequest(
            artifact=subject.artifact,
            runner=subject.runner_name,
            options=dict(subject.options),
            inputs=inputs,
            feeds=tuple(subject.feeds or inputs),
            data=recipe.data["evaluation"].for_model(facts),
            folder=recipe.folder,
            settings=recipe.accuracy,
            postprocess=own_postprocess(facts) or recipe.postprocess,
            guessed=context.guessed,
            reference=self.baseline is not None and subject.name == self.baseline.name,
            out=out,
            jobs=1 if subject.answers or subject.answered else _jobs(subject, context.jobs),
            answers=self._answers(subject),
            answered=subject.answered,
            prepared=prepared if shared else None,
            keep=out / "prepared" if shared and not subject.artifact.foreign else None,
        )

    def _elsewhere(
        self, subject: Subject, ingredients: dict[str, Any], step: str, log: Path, bench: Path
    ) -> accuracy.Elsewhere | None:
        """Other machines, where one of the same processor would compute the same."""
        context, runner = self._context, subject.runner
        nodes = None if judging_files(context.recipe) else context.nodes  # such files stay here
        if nodes is None or subject.interpreter is not None or runner.requires().gpu:
            return None
        order = EvaluationOrder(
            step=step,
            key=key_of(ingredients),
            artifact=subject.artifact,
            runner=runner,
            threads=int(subject.options.get("threads") or environment.usable_cores()),
            ingredients=ingredients,
            samples=context.samples,
            references=tuple(judging_code(context.recipe).values()),
            log=log,
            scratch=bench,
            timeout_s=context.timeout_s,
        )
        return nodes.evaluating(order)

    def _of(self, subject: Subject) -> dict[str, Any]:
        """What decides the outputs and the metric of a subject."""
        if subject.name not in self._ingredients:
            context, recipe = self._context, self._context.recipe
            metric, decoding, users = judged_by(recipe, context.store.digests, _DECIDES)
            identity: list[Any] = [subject.artifact.digest, subject.runner_name, subject.options]
            files = {"answers": subject.answers, "answered": subject.answered}
            given = {k: context.store.digests.of(file) for k, file in files.items() if file is not None}
            identity += [given] if given else []
            self._ingredients[subject.name] = {
                "step": EVALUATION,
                "artifact": of_value(identity),
                "data": context.samples,
                "metric": metric,
                "postprocess": decoding,
                "guessed": context.guessed,
                "users": users,
                "inputs": [spec.model_dump(mode="json") for spec in recipe.inputs],
                "feeds": [spec.model_dump(mode="json") for spec in subject.feeds or ()],
                "cpu": environment.cpu(),
                "versions": environment.versions((*subject.runner.needs.packages, "pycocotools"))
                | dict(subject.versions or {}),
                "code": keys.of_measurement(
                    subject.runner_name, code_of(recipe.accuracy), context.store.digests
                ),
            }
        return self._ingredients[subject.name]


def _jobs(subject: Subject, jobs: int) -> int:
    """How many processes share an evaluation: no more than there are cores for their threads."""
    cores = environment.usable_cores()
    return max(1, min(jobs, cores // int(subject.options.get("threads") or cores)))
