"""Judge model files that no recipe built: accuracy against one of them, on a recipe's data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from optcli import accuracy, data, environment, runners
from optcli.artifact import Format
from optcli.errors import InputError, OptcliError, UsageError
from optcli.files import folders
from optcli.files.digest import of_file, of_value
from optcli.observer import Observer, Silent
from optcli.pipeline import labels, reporting
from optcli.pipeline.accuracy import EvaluationContext, Subject, compare_all
from optcli.pipeline.model_files.opening import Opened, find, open_each
from optcli.pipeline.terms import require_evaluation
from optcli.pipeline.verification.layers import ModelPair, Seeking
from optcli.pipeline.verification.layers import chosen as to_look_into
from optcli.recipe import Recipe, load
from optcli.results import Accuracy, Report, Verdict
from optcli.settings import TensorSpec
from optcli.store import Store, key_of


def verify(
    files: Sequence[Path],
    recipe: Path,
    *,
    wanted: Sequence[str] = (),
    overrides: Sequence[str] = (),
    trust: bool = False,
    remeasure: bool = False,
    jobs: int = 1,
    timeout_s: float = 3600.0,
    layers: str | None = None,
    rejected: bool = True,
    store: Path | Store | None = None,
    observer: Observer | None = None,
) -> Report:
    """Judge files against the first of them; the report's form is a build's, without latency.

    The recipe gives inputs, `data.evaluation`, `accuracy` and `postprocess`; its model and variants are
    not looked at. `wanted` names runners: each file is judged in all of them that run it, by default in
    its format's own. A file that fails costs its row. Those that are rejected are compared with the
    baseline layer by layer, unless `rejected` is false; `layers` names one, "" all. Raises
    `RecipeError`, `UsageError`, `InputError` and `TrustError`.
    """
    began = environment.now()
    observer = observer or Silent()
    store = Store.of(store)
    read = load(recipe, overrides)
    require_evaluation(read, recipe, "to judge on")
    if read.accuracy is not None:
        accuracy.require_metric(read.accuracy)
    targets = find(files, store, trust=trust)
    chosen = [_runners(Format(target.format), wanted, target.path) for target in targets]
    with (
        store.connected(observer.warned),
        folders.temporary("verify") as scratch,
    ):
        opened = open_each(
            targets, Path(scratch), (), read.accuracy.largest_batch if read.accuracy else 1
        )
        subjects = {
            subject.name: (subject, one)
            for one, names in zip(opened, chosen, strict=True)
            for subject in _subjects(one, names, read)
        }
        _require_sizes(opened[0], read.inputs)  # of another file it costs its row
        baseline = next(iter(subjects))
        read = labels.with_labels(read, store, subjects[baseline][0].artifact)
        labels.say(read, observer)
        samples = {"step": "samples", **_ingredients(read, store)}
        context = EvaluationContext(
            read,
            key_of(samples),
            store,
            store.log_folder("verify"),
            observer,
            timeout_s,
            jobs,
            remeasure,
        )
        accuracies, failures = compare_all(
            [subject for subject, _ in subjects.values()], baseline, context
        )
        judged = _report(subjects, baseline, read, accuracies, failures, began)
        names = to_look_into(judged, layers, "--layers", rejected=rejected)
        seeking = Seeking(read, store, observer, remeasure, timeout_s)
        floats = subjects[baseline][0].artifact
        judged = seeking.into(
            judged, names, layers, lambda name: ModelPair(floats, subjects[name][0].artifact)
        )
    store.digests.save()
    return judged


def _ingredients(recipe: Recipe, store: Store) -> dict[str, Any]:
    return data.ingredients(recipe.data["evaluation"], recipe.folder, store.digests)


def _runners(format: Format, wanted: Sequence[str], path: Path) -> list[str]:
    """The runners that judge a file: of those wanted, all that run its format."""
    own = runners.DEFAULTS.get(format)
    names = [name for name in wanted if format in runners.find(name).runs]
    if wanted and not names:
        raise UsageError(
            f"none of the runners {', '.join(wanted)} runs {format}",
            place=str(path),
            hint="leave --runner out: each format has its own",
        )
    if not names and own is None:
        raise UsageError(f"no runner here runs {format}", place=str(path), hint="see the README")
    return names or [str(own)]


def _subjects(opened: Opened, names: Sequence[str], recipe: Recipe) -> list[Subject]:
    """One subject for each runner. The digest is over all files, weights beside the model too."""
    files = sorted(path for path in opened.artifact.path.rglob("*") if path.is_file())
    content = {path.relative_to(opened.artifact.path).as_posix(): of_file(path) for path in files}
    artifact = type(opened.artifact)(**{**vars(opened.artifact), "digest": of_value(content)})
    threads = recipe.latency.threads or environment.usable_cores()
    subjects = []
    for name in names:
        kind = runners.find(name)
        configured = kind.model_validate({"threads": threads})
        label = f"{opened.name} ({name})" if len(names) > 1 else opened.name
        options = configured.model_dump(mode="json")
        feeds = _feeds(opened, recipe.inputs)
        subjects.append(Subject(label, artifact, name, configured, options, feeds))
    return subjects


def _feeds(opened: Opened, inputs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...] | None:
    """The file's inputs in the order of the recipe's: by name where names agree, else by position."""
    if not opened.inputs:
        return None
    by_name = {spec.name: spec for spec in opened.inputs}
    if len(by_name) != len(inputs):
        raise InputError(
            f"it takes {len(by_name)} inputs ({', '.join(by_name)}), the recipe has {len(inputs)}",
            place=str(opened.path),
            hint="list the inputs in the recipe as the files take them",
        )
    if set(by_name) == {spec.name for spec in inputs}:
        return tuple(by_name[spec.name] for spec in inputs)
    if opened.named:
        return opened.inputs
    pairs = zip(opened.inputs, inputs, strict=True)
    return tuple(spec.model_copy(update={"name": ours.name}) for spec, ours in pairs)


def _require_sizes(opened: Opened, inputs: Sequence[TensorSpec]) -> None:
    """The recipe's samples have the sizes that a file takes. Raises `InputError`."""
    for given, ours in zip(_feeds(opened, inputs) or (), inputs, strict=False):
        if len(inputs) > 1 and given.name != ours.name:  # which is which is not known
            continue
        sizes = list(zip(given.shape[1:], ours.concrete(1)[1:], strict=False))
        wrong = any(
            isinstance(their_size, int) and their_size != our_size for their_size, our_size in sizes
        )
        if wrong or len(given.shape) != len(ours.shape):
            raise InputError(
                f"it takes {given.name} of {' x '.join(map(str, given.shape[1:]))},"
                f" the recipe has {ours.name} of {' x '.join(map(str, ours.shape[1:]))}",
                place=str(opened.path),
                hint="name the recipe that the model belongs to, or a model of this recipe",
            )


def _report(
    subjects: Mapping[str, tuple[Subject, Opened]],
    baseline: str,
    recipe: Recipe,
    accuracies: Mapping[str, Accuracy],
    failures: Mapping[str, OptcliError],
    began: str,
) -> Report:
    variants = {}
    for name, (subject, opened) in subjects.items():
        judged, problem = accuracies.get(name), failures.get(name)
        nothing = None if judged else f"the baseline {baseline} could not be evaluated"
        verdicts: tuple[Verdict, ...] = ()
        if judged:
            verdicts = accuracy.verdicts(judged, recipe.accuracy, is_baseline=name == baseline)
        elif nothing and not problem:
            verdicts = (accuracy.unjudged(nothing, recipe.accuracy),)
        precision = (judged.precision if judged else None) or subject.artifact.precision
        variants[name] = reporting.ran(
            replace(subject.artifact, key=subject.artifact.digest),
            str(opened.path),
            {"name": subject.runner_name, "requested": subject.options, "precision": precision},
            problem,
            status="built" if judged else "skipped",
            reason=nothing,
            accuracy=judged,
            verdicts=verdicts,
        )
    all_verdicts = (verdict for variant in variants.values() for verdict in variant.verdicts)
    return reporting.report(
        reporting.recipe_summary(recipe),
        baseline,
        variants,
        packages={name for subject, _ in subjects.values() for name in subject.runner.needs.packages},
        started=began,
        code=reporting.exit_code(all_verdicts, [error.exit_code for error in failures.values()]),
    )
