"""The merge gate at work: both sides made through the store, measured together, judged, explained."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from optcli import environment
from optcli.errors import UsageError, did_you_mean
from optcli.gate import history
from optcli.gate.latency import threads_of
from optcli.observer import Observer, Silent
from optcli.pipeline import view
from optcli.pipeline.execute import Settings
from optcli.pipeline.gating.answer import answer
from optcli.pipeline.gating.baseline import completed, of_commit, saved
from optcli.pipeline.gating.options import Options
from optcli.pipeline.gating.side import candidates, sides
from optcli.pipeline.gating.variant import Gating, judge
from optcli.pipeline.making import make, planned
from optcli.pipeline.phases import Phases
from optcli.recipe import load
from optcli.results import RecipeSummary
from optcli.results.gate import GateReport
from optcli.settings import GateSettings
from optcli.store import Store

__all__ = ["Options", "gate"]


def gate(
    recipe: Path,
    reference: str,
    options: Options,
    *,
    store: Path | None = None,
    artifacts: Path | None = None,
    observer: Observer | None = None,
) -> GateReport:
    """Compare a recipe's variants with a baseline: `git:REVISION`, a name, a file or a URL.

    Builds what is not in the store, measures both sides now and here in launch pairs until it is
    decided, and writes `gate/report.json` with raw samples beside the recipe's results. Raises what
    `build` raises where the candidate cannot be built, `UsageError` and `InputError` for the baseline.
    """
    began = _now()
    observer = observer or Silent()
    kept = Store(Store.default_root(store))
    root = (artifacts or Path("artifacts")).absolute()
    settings = Settings(options.jobs, True, options.timeout_s)
    loaded = load(recipe, options.overrides)
    folder = root / loaded.name / "gate"
    before = saved(reference, recipe, root, kept, trust=options.trust)
    names = _judged(recipe, options, root, kept, observer)
    made = make(planned(recipe, kept, options.overrides, names), kept, observer, settings, Phases())
    mine = candidates(made, names)
    packages = sorted({package for side in mine.values() for package in side.packages})
    if before is not None:
        before = completed(before, names, packages, options.baseline_python)
    else:
        before = of_commit(reference, recipe, names, kept, observer, settings, options, folder / "logs")
    demanded = _demanded(loaded.gate, options)
    gating = Gating(made, before, demanded, options, kept, folder, observer)
    with view.alone(root / loaded.name, observer):
        both = sides(mine, before)
        found = {name: judge(gating, side, len(both)) for name, side in both.items()}
        outcome, sentence, code = answer(found, before.origin, options.on_inconclusive)
        report = GateReport(
            recipe=RecipeSummary(name=loaded.name, path=str(recipe), digest=loaded.digest),
            baseline=before.origin,
            outcome=outcome,
            sentence=sentence,
            exit_code=int(code),
            variants=found,
            environment=environment.describe(packages),
            baseline_environment=before.environment,
            protocol=_protocol(demanded, gating),
            started=began,
            finished=_now(),
        )
        view.write(folder / "report.json", report.to_json() + "\n")
    if options.history is not None:
        history.append(options.history, report, history.current_commit(recipe.absolute().parent))
    kept.digests.save()
    return report


def _judged(
    recipe: Path, options: Options, root: Path, store: Store, observer: Observer
) -> tuple[str, ...]:
    """The variants to judge: those named, those marked, or the one that a build recommends.

    Where nothing is surely better than the recipe's baseline, that is what is served.
    """
    loaded = load(recipe, options.overrides)
    for name in options.only:
        if name not in loaded.variants:
            raise UsageError(
                f"the recipe has no variant {name!r}",
                place="--variant",
                hint=did_you_mean(name, list(loaded.variants)),
            )
    marked = tuple(name for name, variant in loaded.variants.items() if variant.gate)
    if options.only or marked:
        return options.only or marked
    from optcli.pipeline import build

    report = build(
        recipe,
        store=store.root,
        artifacts=root,
        overrides=options.overrides,
        jobs=options.jobs,
        timeout_s=options.timeout_s,
        observer=observer,
    )
    return (report.recommended or report.baseline,)


def _demanded(settings: GateSettings, options: Options) -> GateSettings:
    if options.confirm is None:
        return settings
    return settings.model_copy(update={"confirm": options.confirm})


def _protocol(settings: GateSettings, gating: Gating) -> dict[str, Any]:
    return {
        "mode": "gate",
        "threads": threads_of(settings),
        "settings": settings.model_dump(mode="json"),
        "seconds": gating.seconds,
    }


def _now() -> str:
    return datetime.now(UTC).astimezone().isoformat(timespec="seconds")
