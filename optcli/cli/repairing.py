"""`optcli verify-accuracy --repair`: trials of a quantized variant until it is inside its bar."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from optcli.cli import options
from optcli.cli.progress import Progress
from optcli.errors import ExitCode, OptcliError, UsageError
from optcli.results import Report
from optcli.results.repair import Engine

RECIPES = (".yaml", ".yml")


def run(
    where: Sequence[Path],
    variant: str,
    engine: Engine,
    trials: int,
    max_minutes: float,
    write: bool,
    overrides: Sequence[str],
    jobs: int,
    timeout_s: float,
    store: Path | None,
    artifacts: Path | None,
    as_json: bool,
) -> ExitCode:
    """Repair a variant of a recipe, or of the recipe of a report; print what was found.

    `variant` is empty where none was named: then it is the one that the last build rejected, or the
    only one that is quantized. The exit code is 0 where it is repaired, 5 where it is right but not
    known to be faster, 1 where no trial is inside the bar.
    """
    if Path(variant).suffix in RECIPES:  # `--repair recipe.yaml`: the recipe, and no variant
        where, variant = [*where, Path(variant)], ""
    if len(where) > 1:
        raise UsageError(
            f"found {len(where)} files, wanted one recipe or report",
            place="--repair",
            hint="optcli verify-accuracy RECIPE --repair VARIANT",
        )
    root = options.artifacts_root(artifacts)
    path = where[0] if where else None
    recipe, report = _recipe_and_report(path, root)
    from optcli import tune
    from optcli.report.repair_text import repair_text

    progress = Progress()
    try:
        found = tune.repair(
            recipe,
            variant or _rejected(report),
            engine=engine,
            trials=trials,
            max_seconds=60 * max_minutes,
            write=write,
            store=store,
            artifacts=root,
            overrides=overrides,
            jobs=jobs,
            timeout_s=timeout_s,
            observer=progress,
        )
    finally:
        progress.close()
    click.echo(found.model_dump_json(indent=2) if as_json else repair_text(found), nl=as_json)
    codes = {"repaired": ExitCode.DONE, "accurate": ExitCode.INCONCLUSIVE}
    return codes.get(found.outcome, ExitCode.REJECTED)


def _recipe_and_report(where: Path | None, root: Path) -> tuple[Path, Report | None]:
    """The recipe, and the report of its last build where there is one."""
    if where is not None and where.suffix in RECIPES:
        try:
            return where, options.find_report(where, root)[0]
        except OptcliError:  # what is wrong with the recipe is said when it is read in earnest
            return where, None
    report, path = options.find_report(where, root)
    recipe = Path(report.recipe.path)
    if not recipe.is_file():
        raise UsageError(
            f"the recipe of this report is gone: {recipe}",
            place=str(path),
            hint="optcli verify-accuracy RECIPE --repair VARIANT",
        )
    return recipe, report


def _rejected(report: Report | None) -> str | None:
    """The one variant whose accuracy the last build rejected; None where there are more, or none."""
    found = [
        name
        for name, variant in (report.variants if report is not None else {}).items()
        if any(each.name == "accuracy" and each.outcome == "reject" for each in variant.verdicts)
    ]
    return found[0] if len(found) == 1 else None
