"""`optcli tune`: other options of a quantized variant until it keeps its accuracy and is faster."""

from __future__ import annotations

from pathlib import Path

import click

from optcli.cli import options, reports
from optcli.cli.progress import Progress
from optcli.errors import ExitCode, OptcliError, TrustError, UsageError
from optcli.paths import shown
from optcli.results.repair import Engine


@click.command(
    "tune",
    epilog=options.examples(
        "optcli tune recipe.yaml --from onnx-int8",
        "optcli tune recipe.yaml --from onnx-int8 --minutes 15 --write",
    ),
)
@click.argument("where", required=False, type=options.FILE, metavar="[RECIPE|REPORT]")
@click.option("--from", "start", metavar="VARIANT", help="The quantized variant to start at.")
@click.option(
    "--engine",
    type=click.Choice(["layers", "nncf"]),
    default="layers",
    show_default=True,
    help="What chooses the layers; nncf: NNCF's accuracy control, of quantize_nncf.",
)
@click.option(
    "--trials",
    type=click.IntRange(1),
    default=16,
    show_default=True,
    help="The largest number of trials.",
)
@click.option(
    "--minutes",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    show_default=True,
    help="Seconds after which no further trial begins.",
)
@click.option("--write", is_flag=True, help="Apply the patch to the recipe.")
@click.option("--trust", is_flag=True, help="Build the recipe of a report from elsewhere.")
@options.jobs
@options.timeout("step")
@options.overrides
@options.store
@options.artifacts
@options.as_json
@options.verbose
def command(
    where: Path | None,
    start: str | None,
    engine: Engine,
    trials: int,
    minutes: float,
    write: bool,
    trust: bool,
    jobs: int | None,
    timeout: float,
    overrides: tuple[str, ...],
    store: Path | None,
    artifacts: Path | None,
    as_json: bool,
) -> int:
    """Find options of a quantized variant that keep its accuracy bar and make it faster.

    Each trial builds the variant anew, with layers in floating point and other ranges, and judges it;
    what is inside the bar is timed beside its float parent. The result is a patch of the recipe.
    Without a RECIPE it is the one of the last build, or of a REPORT.

    The exit code is 0 where a trial is inside the bar and faster than in float, 5 where it is inside
    and not known to be faster, 1 where none is inside.
    """
    recipe, built = _recipe_and_report(where, artifacts)
    if built is not None and built.is_from_elsewhere and not trust:
        raise TrustError(
            "this report is from elsewhere, and tuning builds the recipe that it names",
            place=str(built.path),
            hint=f"look into {shown(recipe)} and name that, or add --trust",
        )
    from optcli import tuning
    from optcli.pipeline.execute import usual_jobs
    from optcli.report.repair_text import repair_text

    with Progress() as progress:
        result = tuning.repair(
            recipe,
            start,
            engine=engine,
            trials=trials,
            max_seconds=60 * minutes,
            write=write,
            store=built.own_store(store) if built else store,
            artifacts=built.root if built else reports.root(artifacts),
            overrides=overrides,
            jobs=jobs or usual_jobs(),
            timeout_s=timeout,
            trust=trust,
            observer=progress,
        )
    click.echo(result.model_dump_json(indent=2) if as_json else repair_text(result), nl=as_json)
    codes = {"repaired": ExitCode.DONE, "accurate": ExitCode.INCONCLUSIVE}
    return codes.get(result.outcome, ExitCode.REJECTED)


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
            f"the recipe of this report is gone: {shown(recipe)}",
            place=str(built.path),
            hint="optcli tune RECIPE --from VARIANT",
        )
    return recipe, built
