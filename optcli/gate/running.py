"""The merge gate at work: both sides made through the store, measured together, judged, explained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from optcli import environment
from optcli.errors import ExitCode, UsageError, shown_path
from optcli.files.digest import FileDigests
from optcli.gate import baselines, history, other_interpreter, terms
from optcli.gate.explain import of_samples
from optcli.gate.latency import threads_of
from optcli.gate.origins import GateRun, Origin, opened
from optcli.gate.side import Gating, Side, candidates, runner_changes, sides
from optcli.gate.terms import chosen
from optcli.gate.variant import judge
from optcli.observer import Observer, Silent
from optcli.pipeline import labels, view
from optcli.pipeline.execute import BuildSettings
from optcli.pipeline.making import Phases, make, planned
from optcli.pipeline.on_devices import joined
from optcli.pipeline.places import HERE as THIS_MACHINE
from optcli.pipeline.places import Here, Place
from optcli.pipeline.plan import BuildPlan, device_of
from optcli.pipeline.terms import terms_of
from optcli.recipe import Recipe, load
from optcli.report.gate import changes_in_words, kinds_of
from optcli.results import Outcome, RecipeSummary
from optcli.results.gate import Change, Comparison, GatedVariant, GateReport, worst
from optcli.settings.devices import HERE
from optcli.settings.gate import GateSettings
from optcli.settings.slo import SloSettings
from optcli.store import Store

# Figures that noise can leave undecided: only these may count as a pass where they are inconclusive.
_TIMED = ("p50", "p95", "slo")


_MOST_TOLD = 3


def gate(
    recipe: Path,
    reference: str,
    options: GateRun,
    *,
    store: Path | Store | None = None,
    artifacts: Path | None = None,
    observer: Observer | None = None,
) -> GateReport:
    """Compare a recipe's variants with a baseline: `git:REVISION`, a name, a file or a URL.

    Builds what is not in the store, measures both sides now and here in launch pairs until it is
    decided, and writes `gate/report.json` with raw samples beside the recipe's results. Raises what
    `build` raises where the candidate cannot be built, `UsageError` and `InputError` for the baseline.
    """
    began = environment.now()
    observer = observer or Silent()
    store = Store.of(store)
    root = (artifacts or Path("artifacts")).absolute()
    settings = BuildSettings(options.jobs, True, options.timeout_s, options.trust)
    loaded = load(recipe, options.overrides)
    folder = root / loaded.name / "gate"
    _require_own_places(folder, store.root)

    whole = other_interpreter.BuildRequest(
        recipe, options.overrides, (), store.root, root, settings, store.remote_place
    )

    def suggested() -> tuple[str, ...]:
        return _suggested(whole, observer)

    with (
        ExitStack() as stack,
        store.connected(observer.warned),
        opened(reference, recipe, root, store, observer, settings, options, folder) as origin,
    ):
        names, missing = chosen(loaded, options.only, origin.terms, suggested, origin.suggested)
        demanded, slo = _demanded(loaded, origin, options)
        to_do = planned(recipe, store, options.overrides, list(names))
        labels.say(to_do.recipe, observer)
        places = stack.enter_context(devices_of(options.ray, demanded, to_do, store, observer))
        made = make(to_do, store, observer, settings, Phases())
        candidate_sides = candidates(made, list(names))
        packages = sorted({package for side in candidate_sides.values() for package in side.packages})
        baseline = origin.made(list(names), packages)
        variants = sides(candidate_sides, baseline)
        missing = [*missing, *_committed(reference, root, store)]
        changes = _changes(origin, made.plan.recipe, variants, missing, store.digests, options)
        samples = {}
        if origin.terms is not None:
            own_terms = terms_of(made.plan.recipe, store.digests)
            samples = of_samples(origin.terms.samples, own_terms.samples)
        gating = Gating(
            made,
            baseline,
            origin,
            demanded,
            slo,
            changes,
            options,
            store,
            folder,
            observer,
            places,
            samples,
        )
        with view.alone(root / loaded.name, observer):
            judged = {
                name: judge(gating, side, len(variants), names[name]) for name, side in variants.items()
            }
            outcome, sentence, code = answer(judged, changes, baseline.origin, options.on_inconclusive)
            report = GateReport(
                recipe=RecipeSummary(name=loaded.name, path=str(recipe), digest=loaded.digest),
                baseline=baseline.origin,
                outcome=outcome,
                sentence=sentence,
                exit_code=int(code),
                changes=tuple(changes),
                accepted=tuple(sorted(options.accept)),
                variants=judged,
                environment={**environment.describe(packages), "machine": environment.machine()},
                devices={
                    each.name: {**each.environment(packages), "machine": each.machine()}
                    for each in places
                    if each.name is not None
                },
                baseline_environment=baseline.environment,
                protocol=_protocol(demanded, gating),
                started=began,
                finished=environment.now(),
            )
            view.write(folder / "report.json", report.to_json() + "\n")
    if options.history is not None:
        history.append(options.history, report, history.current_commit(recipe))
    store.digests.save()
    return report


# What the candidate's build recommends, measured here.
_suggested = other_interpreter.suggested


def _require_own_places(folder: Path, store: Path) -> None:
    """Raise `UsageError` where a link of a commit leads to the folder of results or to the store."""
    for option, place in (("--artifacts", folder), ("--store", store)):
        link = baselines.committed_link(place.absolute())
        if link is not None:
            raise UsageError(
                "this is a link that git holds: a commit would say where optcli writes",
                place=str(link),
                hint=f"name the folder that it leads to with {option}",
            )


def _changes(
    origin: Origin,
    candidate: Recipe,
    variants: Mapping[str, Side],
    missing: Sequence[Change],
    digests: FileDigests,
    options: GateRun,
) -> list[Change]:
    """All that differs in what the two are judged by, with what was declared marked as such."""
    differences = [*missing, *origin.changes(candidate)]
    if origin.terms is None:
        if origin.recipe is None:
            differences.append(Change(kind="terms", place="baseline"))
    else:
        differences += terms.changes(origin.terms, terms_of(candidate, digests), list(variants))
    differences += [each for side in variants.values() for each in runner_changes(side)]
    return [
        each.model_copy(update={"accepted": not each.tighter and each.kind in options.accept})
        for each in differences
    ]


def _committed(reference: str, root: Path, store: Store) -> list[Change]:
    """The store and the baseline's file, where git holds them: a pull request can bring its own."""
    places = [store.root]
    pack = None if reference.startswith("git:") else baselines.local_file(reference, root)
    places += [pack.absolute()] if pack is not None else []
    return [
        Change(kind="committed", place=shown_path(place), files=(shown_path(place),))
        for place in places
        if baselines.committed(place)
    ]


def _demanded(
    candidate: Recipe, origin: Origin, options: GateRun
) -> tuple[GateSettings, SloSettings | None]:
    """The settings and service level that both sides demand; declared changes follow the candidate."""
    settings, slo, judging = candidate.gate, candidate.slo, origin.terms
    if judging is not None:
        settings = terms.stricter_gate(judging.gate, settings, options.accept)
        slo = terms.stricter_slo(judging.slo, slo, options.accept)
    if options.confirm is not None:
        settings = settings.model_copy(update={"confirm": options.confirm})
    return settings, slo


def _protocol(settings: GateSettings, gating: Gating) -> dict[str, Any]:
    return {
        "mode": "gate",
        "threads": threads_of(settings),
        "settings": settings.model_dump(mode="json"),
        "seconds": gating.seconds,
    }


@contextmanager
def devices_of(
    ray: str | None, settings: GateSettings, plan: BuildPlan, store: Store, observer: Observer
) -> Iterator[tuple[Place, ...]]:
    """The places of `gate.devices` in their order; this machine where it names none.

    Raises `UsageError` where a device needs `--ray` or is none of the recipe's, `MissingError` where no
    node of the cluster is the device.
    """
    if settings.devices is None:
        yield (THIS_MACHINE,)
        return
    recipe = plan.recipe
    for name in settings.devices:
        if name != HERE and name not in recipe.devices:
            raise UsageError(
                f"the baseline was judged on a device {name!r}, which the recipe does not have",
                place="gate.devices",
                hint="bring it back, or declare the change: --accept rule",
            )
    variants = tuple(each.name for each in plan.variants)
    devices = [device_of(recipe, name, variants) for name in settings.devices]
    with joined(ray, plan, devices, store, observer) as remote_devices:
        yield tuple(remote_devices.get(name) or Here(name) for name in settings.devices)


def answer(
    variants: Mapping[str, GatedVariant],
    changes: Sequence[Change],
    baseline: str,
    on_inconclusive: str | None,
) -> tuple[Outcome, str, ExitCode]:
    """What to do with the merge. `on_inconclusive` makes a doubt a `pass` or a `fail`.

    `pass` covers noise alone: latency that was measured and not decided, and does not look worse than
    its limit. What was not compared, and terms that changed without being declared, stay inconclusive.
    So does a gate whose every variant is new.
    """
    outcome = worst(variant.outcome for variant in variants.values())
    undeclared = [each for each in changes if each.open]
    nothing = not _judged(variants)
    if outcome == "accept" and (nothing or undeclared):
        outcome = "inconclusive"
    code = ExitCode.of(outcome)
    if outcome == "inconclusive" and on_inconclusive == "fail":
        code = ExitCode.REJECTED
    if outcome == "inconclusive" and on_inconclusive == "pass":
        doubts = _with_outcome(variants, "inconclusive")
        noise = not undeclared and not nothing and all(_is_noise(each) for _, each in doubts)
        code = ExitCode.DONE if noise else code
    return outcome, _sentence(variants, undeclared, baseline, outcome, code), code


def _is_noise(comparison: Comparison) -> bool:
    return comparison.compared and comparison.metric in _TIMED and not comparison.seems_worse


def _with_outcome(
    variants: Mapping[str, GatedVariant], outcome: Outcome
) -> list[tuple[str, Comparison]]:
    return [
        (name, each)
        for name, variant in variants.items()
        for each in variant.comparisons
        if each.blocking and each.outcome == outcome
    ]


def _sentence(
    variants: Mapping[str, GatedVariant],
    undeclared: Sequence[Change],
    baseline: str,
    outcome: Outcome,
    code: ExitCode,
) -> str:
    decisive = _with_outcome(variants, outcome)
    if outcome == "reject":
        # The strongest cause, where one is known.
        known = (v.causes[0] for v in variants.values() if v.outcome == "reject" and v.causes)
        because = next((f". What changed: {cause}" for cause in known), "")
        return f"Do not merge: {_listed(decisive)}{because}."
    if outcome == "inconclusive":
        return _cannot_tell(variants, undeclared, baseline, code, decisive)
    new = [name for name, variant in variants.items() if not _judged({name: variant})]
    besides = f"; {', '.join(new)} is new and was not compared" if new else ""
    shown_path = (each for variant in variants.values() for each in variant.comparisons)
    if not any(each.metric == "accuracy" and each.blocking for each in shown_path):
        besides += "; accuracy was not judged"
    nothing = f"nothing became worse than {baseline} beyond its limit{besides}"
    better = [(name, each) for name, each in decisive if each.improved]
    return f"Merge: {_listed(better)}; {nothing}." if better else f"Merge: {nothing}."


def _cannot_tell(
    variants: Mapping[str, GatedVariant],
    undeclared: Sequence[Change],
    baseline: str,
    code: ExitCode,
    decisive: list[tuple[str, Comparison]],
) -> str:
    parts = []
    if undeclared:
        clauses = changes_in_words(undeclared)
        listed = "; ".join(clauses[:_MOST_TOLD])
        more = len(clauses) - _MOST_TOLD
        listed += f", and {more} more" if more > 0 else ""
        declare = f"--accept {','.join(kinds_of(undeclared))}"
        parts.append(
            f"what the candidate is judged by has changed: {listed} (whoever runs the gate may allow"
            f" that: {declare})"
        )
    if decisive:
        parts.append(_listed(decisive))
    if not parts:
        parts.append(f"{', '.join(variants)} is not in {baseline}, nothing was compared")
    endings = {ExitCode.DONE: " Taken as a pass.", ExitCode.REJECTED: " Taken as a failure."}
    return f"Cannot tell: {'; '.join(parts)}.{endings.get(code, '')}"


def _judged(variants: Mapping[str, GatedVariant]) -> bool:
    """Whether anything was compared with what was there before."""
    old = [variant for variant in variants.values() if not variant.is_new]
    return any(each.blocking for variant in old for each in variant.comparisons)


def _listed(named: list[tuple[str, Comparison]]) -> str:
    parts = [f"{name} {each.name}: {each.reason}" for name, each in named[:_MOST_TOLD]]
    more = f", and {len(named) - _MOST_TOLD} more" if len(named) > _MOST_TOLD else ""
    return "; ".join(parts) + more
