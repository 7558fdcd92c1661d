"""Accuracy before the gate: by both sides' recipes, and against the float variants.

A loss within the bar at each of many merges adds up. So a variant is also compared with its recipe's
float variant, as both sides have it: that anchor does not move with every merge.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from optcli import accuracy, data
from optcli.errors import OptcliError
from optcli.files.digest import FileDigests
from optcli.gate import comparisons
from optcli.gate.baselines import BaselineVariant
from optcli.gate.side import Gating, Side, built_variants
from optcli.gate.terms import ACCURACY_BARS
from optcli.pipeline.accuracy import EvaluationContext, Subject, compare_all
from optcli.recipe import Recipe
from optcli.results import Accuracy, Flag, Verdict, flags
from optcli.results.gate import ChangeKind, Comparison, Metric
from optcli.runners import find as find_runner
from optcli.settings.accuracy import AccuracySettings
from optcli.store import key_of

# Differences in these make the same outputs count for more or less.
_JUDGING: frozenset[ChangeKind] = frozenset(
    {"evaluation", "preparation", "postprocess", "metric", "code"}
)


@dataclass(frozen=True)
class Incomparable:
    """Why the two sides cannot be measured beside each other.

    `declared`: `--accept` allows the change. `evaluates`: the baseline's artifact can still be run for
    its outputs.
    """

    why: str
    declared: bool = False
    evaluates: bool = False

    def comparison(self, metric: Metric) -> Comparison:
        """The figure as not compared; it does not block where the change is allowed."""
        return comparisons.not_compared(metric, self.why, blocks=not self.declared)


def compare(
    gating: Gating, side: Side, incomparable: Incomparable | None
) -> tuple[list[Comparison], list[Flag]]:
    """What is said of one variant's accuracy, and doubts about it.

    `incomparable` says why the baseline's artifact cannot take part; then only the anchors do. Raises
    what goes wrong while the candidate is evaluated by its own recipe.
    """
    compared: list[Comparison] = []
    doubts: list[Flag] = []
    candidate, baseline = gating.made.plan.recipe, gating.origin.recipe
    if "evaluation" in candidate.data:
        samples = gating.made.plan.role_keys["evaluation"]
        compared, doubts = _on(gating, side, incomparable, candidate, samples, _bars(gating), "")
    if baseline is not None and "evaluation" in baseline.data and _judges_otherwise(gating, baseline):
        samples, label = samples_of(baseline, gating.store.digests), " by the baseline's recipe"
        bars = [("", baseline.accuracy)]
        try:
            compared += _on(gating, side, incomparable, baseline, samples, bars, label)[0]
        except OptcliError as error:
            why = f"the candidate cannot be judged by the baseline's recipe: {error.message}"
            compared.append(comparisons.not_compared("accuracy", why))
    lacking = _lacking(gating, side, incomparable) if "evaluation" in candidate.data else None
    if lacking is not None:
        if side.baseline is None:
            why = f"the float variant {lacking} was built on neither side"
            compared.append(comparisons.not_compared("accuracy", why))
        else:
            doubts.append(flags.no_float_anchor(lacking))
    if not compared:
        why = "this is the float variant itself"
        why = why if "evaluation" in candidate.data else "the recipe names no evaluation data"
        compared = [comparisons.not_compared("accuracy", why, blocks=False)]
    return compared, doubts


def _lacking(gating: Gating, side: Side, incomparable: Incomparable | None) -> str | None:
    """The float variant that was built on neither side; None where one was, or where this is it."""
    name = gating.made.plan.baseline
    floats = [each for _, each, old in _floats(gating) if not (old and incomparable is not None)]
    if side.name == name or any(each is not None for each in floats):
        return None
    return name


def _judges_otherwise(gating: Gating, baseline: Recipe) -> bool:
    """Whether the baseline's own evaluation still counts beside the candidate's."""
    if baseline.accuracy is not None and gating.made.plan.recipe.accuracy is None:
        return "bar" not in gating.declared
    return any(each.open for each in gating.changes if each.kind in _JUDGING)


def _bars(gating: Gating) -> list[tuple[str, AccuracySettings | None]]:
    """The candidate's bar, and the baseline's for the same metric where it is another."""
    candidate = gating.made.plan.recipe.accuracy
    baseline = gating.origin.terms.accuracy if gating.origin.terms is not None else None
    bars: list[tuple[str, AccuracySettings | None]] = [("", candidate)]
    if candidate is None or baseline is None or "bar" in gating.declared:
        return bars
    baseline_bar = {name: getattr(baseline, name) for name in ACCURACY_BARS}
    if baseline_bar != {name: getattr(candidate, name) for name in ACCURACY_BARS}:
        bars.append((" by the baseline's bar", candidate.model_copy(update=baseline_bar)))
    return bars


def samples_of(recipe: Recipe, digests: FileDigests) -> str:
    """The key of a recipe's evaluation set, as a plan has it."""
    settings = recipe.data["evaluation"]
    return key_of({"step": "samples", **data.ingredients(settings, recipe.folder, digests)})


def _on(
    gating: Gating,
    side: Side,
    incomparable: Incomparable | None,
    recipe: Recipe,
    samples: str,
    bars: Sequence[tuple[str, AccuracySettings | None]],
    label: str,
) -> tuple[list[Comparison], list[Flag]]:
    """Compare by one recipe's evaluation data, preparation, postprocessing and metric."""
    context = EvaluationContext(
        recipe,
        samples,
        gating.store,
        gating.logs,
        gating.observer,
        gating.options.timeout_s,
        gating.options.jobs,
    )
    candidate = _subject(side.name, side.candidate)
    compared: list[Comparison] = []
    doubts: list[Flag] = []
    if side.baseline is not None and incomparable is not None:
        compared.append(incomparable.comparison("accuracy"))
    elif side.baseline is not None:
        base = _baselines(gating, f"{side.name} (baseline)", side.baseline)
        result, baseline = _compared(candidate, base, context)
        compared += _judged(result, baseline, bars, label)
        if recipe.accuracy is not None and (few := accuracy.too_few(result, recipe.accuracy)):
            doubts.append(few)
    if recipe.accuracy is None and side.baseline is not None:
        return compared, doubts
    for name, variant, is_baselines in _anchors(gating, side, incomparable):
        if is_baselines:
            base, whose = _baselines(gating, f"{name} (float, baseline)", variant), "the baseline's"
        else:
            base, whose = _subject(f"{name} (float)", variant), "its own"
        result, baseline = _compared(candidate, base, context)
        against = f" against {whose} {name}{label}"
        # Outputs count where nothing else is compared.
        compared += _judged(result, baseline, bars, against, outputs=recipe.accuracy is None)
    return compared, doubts


def _anchors(
    gating: Gating, side: Side, incomparable: Incomparable | None
) -> Iterator[tuple[str, BaselineVariant, bool]]:
    """The float variants that this one has not been compared with yet; each artifact once.

    Each with its name, and whether it is the baseline's.
    """
    seen = {side.candidate.artifact.digest}
    if side.baseline is not None:
        seen.add(side.baseline.artifact.digest)
    for name, each, is_baselines in _floats(gating):
        if is_baselines and incomparable is not None:
            continue
        if each is not None and each.artifact.digest not in seen:
            seen.add(each.artifact.digest)
            yield name, each, is_baselines


def _floats(gating: Gating) -> Iterator[tuple[str, BaselineVariant | None, bool]]:
    """The float variants by name, the candidate's and the baseline's; None where one was not built."""
    own = gating.made.plan.baseline
    baseline = gating.origin.terms.baseline if gating.origin.terms is not None else own
    yield own, built_variants(gating.made, [own]).get(own), False
    yield baseline, gating.baseline.variants.get(baseline), True


def _compared(
    candidate: Subject, base: Subject, context: EvaluationContext
) -> tuple[Accuracy, Accuracy]:
    """The accuracy of `candidate` against `base`, and that of `base` itself."""
    judged, failures = compare_all([base, candidate], base.name, context)
    for error in failures.values():
        raise error
    return judged[candidate.name], judged[base.name]


def _judged(
    result: Accuracy,
    baseline: Accuracy,
    bars: Sequence[tuple[str, AccuracySettings | None]],
    against: str,
    *,
    outputs: bool = True,
) -> list[Comparison]:
    """The verdicts by each bar, and whether the other side is accurate enough to compare with."""
    compared = []
    for whose, settings in bars:
        for verdict in accuracy.verdicts(result, settings):
            is_outputs = verdict.name == "outputs"
            if not (verdict.blocking or verdict.outcome != "accept") or (is_outputs and not outputs):
                continue
            if whose and verdict.name != "accuracy":  # said once, by the recipe itself
                continue
            named = verdict.model_copy(update={"name": f"{verdict.name}{against}{whose}"})
            compared.append(_comparison(named, result, is_outputs=is_outputs))
        is_judged = any(verdict.name == "accuracy" for verdict in accuracy.verdicts(result, settings))
        if settings is not None and not is_judged and not whose:
            why = "the evaluation data have no labels that the metric reads"
            compared.append(comparisons.not_compared("accuracy", why))
    _, settings = bars[0]
    for verdict in accuracy.verdicts(baseline, settings, is_baseline=True):
        if verdict.outcome != "accept" and (verdict.blocking or verdict.name == "labels"):
            why = f"the artifact that it is compared with is no valid reference: {verdict.reason}"
            compared.append(comparisons.not_compared("accuracy", why))
    return compared


def _comparison(verdict: Verdict, result: Accuracy, *, is_outputs: bool) -> Comparison:
    return comparisons.judged(
        "outputs" if is_outputs else "accuracy",
        "fraction",
        verdict,
        None if is_outputs else result.baseline,
        None if is_outputs else result.value,
    )


def _baselines(gating: Gating, name: str, variant: BaselineVariant) -> Subject:
    """An artifact of the baseline, in the Python that runs it."""
    subject = _subject(name, variant)
    if gating.baseline.interpreter is None:
        return subject
    versions = gating.baseline.environment["versions"]
    return replace(subject, interpreter=gating.baseline.interpreter, versions=versions)


def _subject(name: str, variant: BaselineVariant) -> Subject:
    runner = find_runner(variant.runner).model_validate(variant.options)
    return Subject(name, variant.artifact, variant.runner, runner, variant.options)
