"""`optcli tune`: the fastest artifact inside the bar, or one variant brought inside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import click

from optcli.cli import options, reports, show
from optcli.cli.progress import Progress
from optcli.errors import ExitCode, OptcliError, TrustError, UsageError, shown_path
from optcli.settings.tuning import Objective


@dataclass(frozen=True)
class TuningOptions:
    """What `optcli tune` alone takes."""

    minutes: float | None = options.option(
        "--minutes",
        type=click.FloatRange(min=0, min_open=True),
        help="The time budget. Default: what the recipe's tune section says, else 15. With --from:"
        " 30; a trial that runs then is still finished.",
    )
    objective: Objective | None = options.option(
        "--objective",
        type=click.Choice(get_args(Objective)),
        help="What to improve. Default: what the recipe's tune section says, else p50.",
    )
    batch_size: int | None = options.option(
        "--batch-size",
        type=click.IntRange(1),
        help="The batch size that the objective is about. Default: all of latency.batch_sizes.",
    )
    seed: int | None = options.option(
        "--seed", type=click.IntRange(0), help="The seed, in place of the recipe's."
    )
    out: Path | None = options.option(
        "--out",
        type=options.OUT_FILE,
        help="The recipe to write. Default: NAME.tuned.yaml beside the recipe.",
    )
    restart: bool = options.option(
        "--restart", is_flag=True, help="Forget the trials of an earlier run."
    )
    start: str | None = options.option(
        "--from", metavar="VARIANT", help="Repair the accuracy of this quantized variant instead."
    )
    trials: int | None = options.option(
        "--trials",
        type=click.IntRange(1),
        help="With --from, the largest number of trials. Default: 16.",
    )
    write: bool = options.option(
        "--write", is_flag=True, help="With --from, apply the patch to the recipe."
    )


@click.command(
    "tune",
    epilog=options.examples(
        "optcli tune recipe.yaml --minutes 15",
        "optcli tune recipe.yaml --from onnx-int8 --write",
    ),
)
@click.argument("where", required=False, type=options.FILE, metavar="[RECIPE|REPORT]")
@options.group("given", TuningOptions)
@click.option("--trust", is_flag=True, help="Build the recipe of a report from elsewhere.")
@options.ray
@options.jobs
@options.timeout("step")
@options.overrides
@options.store
@options.remote
@options.artifacts
@options.output
def command(
    where: Path | None,
    given: TuningOptions,
    trust: bool,
    ray: str | None,
    jobs: int | None,
    timeout: float,
    overrides: tuple[str, ...],
    store: Path | None,
    artifacts: Path | None,
    as_json: bool,
) -> int:
    """Find the fastest artifact that keeps the recipe's accuracy bar, within a time budget.

    The search tries runtimes, precisions, quantizers and their options. If the recipe has training
    data, it also tries smaller networks and trains them again. It chooses by validation samples. The
    finalists become the variants of NAME.tuned.yaml; optcli builds them, measures them together and
    judges them on the evaluation samples. The recipe needs no variants of its own. Ctrl-C ends the
    search, and optcli judges what it found so far. A search that was killed continues when you start
    it again.

    With --from the search starts at one quantized variant and looks for options of its quantizing pass
    that bring it inside the bar; the result is a patch of the recipe.

    Without an argument it takes the recipe of the last build; for a REPORT, the recipe of that build.

    The exit code is 0 if the winner is inside the bar and faster than the baseline (with --from: than
    in float; with --objective: by p99, cheaper or smaller), 5 if it is inside and optcli cannot tell
    whether it is faster, 1 if none is inside, 130 after a Ctrl-C before anything was found.
    """
    _require_together(
        given.start,
        {
            "--objective": given.objective,
            "--batch-size": given.batch_size,
            "--seed": given.seed,
            "--out": given.out,
        }
        | {"--restart": given.restart or None},
        {"--trials": given.trials, "--write": given.write or None},
    )
    recipe, built = _recipe_and_report(where, artifacts)
    if built is not None and built.is_from_elsewhere and not trust:
        raise TrustError(
            "this report is from elsewhere, and tuning builds the recipe that it names",
            place=str(built.path),
            hint=f"look into {shown_path(recipe)} and name that, or add --trust",
        )
    from optcli import tuning
    from optcli.pipeline.execute import BuildSettings, usual_jobs

    root = built.own_store(store) if built else store
    common: dict[str, Any] = {
        "store": options.opened(root),
        "artifacts": built.root if built else reports.root_to_write(artifacts),
        "overrides": overrides,
        "settings": BuildSettings(jobs or usual_jobs(ray), True, timeout, trust, ray),
    }
    with Progress() as progress:
        common["observer"] = progress
        if given.start is None:
            search = tuning.tune(
                recipe,
                minutes=given.minutes,
                objective=given.objective,
                batch_size=given.batch_size,
                seed=given.seed,
                out=given.out,
                restart=given.restart,
                **common,
            )
        else:
            result = tuning.repair(
                recipe,
                given.start,
                trials=given.trials or 16,
                max_seconds=60 * (given.minutes or 30.0),
                write=given.write,
                **common,
            )
    if given.start is None:
        from optcli.report.tuning import document
        from optcli.tuning.search import INTERRUPTED

        show(search, document(search), as_json=as_json)
        if search.stopped_because == INTERRUPTED and not search.finalists:
            raise KeyboardInterrupt  # nothing was judged, so no code about the bar is right
        return {"faster": ExitCode.DONE, "accurate": ExitCode.INCONCLUSIVE}.get(
            search.outcome, ExitCode.REJECTED
        )
    from optcli.report import repair

    show(result, repair.document(result), as_json=as_json)
    codes = {"repaired": ExitCode.DONE, "accurate": ExitCode.INCONCLUSIVE}
    return codes.get(result.outcome, ExitCode.REJECTED)


def _require_together(start: str | None, of_search: dict[str, Any], of_repair: dict[str, Any]) -> None:
    """Raise `UsageError` for an option of the other way to tune."""
    others = of_repair if start is None else of_search
    given = [name for name, value in others.items() if value is not None]
    if given:
        what = "needs --from VARIANT" if start is None else "has no effect beside --from"
        hint = "add --from VARIANT, or leave it out" if start is None else "leave one of the two out"
        raise UsageError(f"{given[0]} {what}", place=given[0], hint=hint)


def _recipe_and_report(
    where: Path | None, artifacts: Path | None
) -> tuple[Path, reports.FoundReport | None]:
    """The recipe, and the report of its last build where there is one."""
    if where is not None and where.suffix in reports.RECIPES:
        try:
            return where, reports.find(where, artifacts)
        except OptcliError:  # what is wrong with the recipe is said when it is read in earnest
            return where, None
    built = reports.find(where, artifacts)
    recipe = Path(built.report.recipe.path)
    if not recipe.is_file():
        raise UsageError(
            f"the recipe of this report is gone: {shown_path(recipe)}",
            place=str(built.path),
            hint="optcli tune RECIPE",
        )
    return recipe, built
