"""`optcli verify-accuracy --repair`: trials of a quantized variant until it is inside its bar."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from optcli.cli import reports
from optcli.cli.progress import Progress
from optcli.errors import ExitCode, OptcliError, TrustError, UsageError
from optcli.paths import shown
from optcli.results import Report
from optcli.results.repair import Engine


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
    trust: bool,
    store: Path | None,
    artifacts: Path | None,
    as_json: bool,
) -> ExitCode:
    """Repair a variant of a recipe, or of the recipe of a report; print what was found.

    `variant` is empty where none was named: then it is the one that the last build rejected, or the
    only one that is quantized. The exit code is 0 where it is repaired, 5 where it is right but not
    known to be faster, 1 where no trial is inside the bar.
    """
    if Path(variant).suffix in reports.RECIPES:  # `--repair recipe.yaml`: the recipe, and no variant
        where, variant = [*where, Path(variant)], ""
    if len(where) > 1:
        raise UsageError(
            f"found {len(where)} files, wanted one recipe or report",
            place="--repair",
            hint="optcli verify-accuracy RECIPE --repair VARIANT",
        )
    path = where[0] if where else None
    recipe, found_at = _recipe_and_report(path, artifacts)
    if found_at is not None and found_at.is_from_elsewhere and not trust:
        raise TrustError(
            "this report is from elsewhere, and to repair a variant builds the recipe that it names",
            place=str(found_at.path),
            hint=f"look into {shown(recipe)} and name that, or add --trust",
        )
    from optcli import tuning
    from optcli.report.repair_text import repair_text

    progress = Progress()
    try:
        found = tuning.repair(
            recipe,
            variant or _rejected(found_at.report if found_at else None),
            engine=engine,
            trials=trials,
            max_seconds=60 * max_minutes,
            write=write,
            store=found_at.own_store(store) if found_at else store,
            artifacts=found_at.root if found_at else reports.root(artifacts),
            overrides=overrides,
            jobs=jobs,
            timeout_s=timeout_s,
            trust=trust,
            observer=progress,
        )
    finally:
        progress.close()
    click.echo(found.model_dump_json(indent=2) if as_json else repair_text(found), nl=as_json)
    codes = {"repaired": ExitCode.DONE, "accurate": ExitCode.INCONCLUSIVE}
    return codes.get(found.outcome, ExitCode.REJECTED)


def _recipe_and_report(
    where: Path | None, artifacts: Path | None
) -> tuple[Path, reports.FoundReport | None]:
    """The recipe, and the report of its last build where there is one."""
    if where is not None and where.suffix in reports.RECIPES:
        try:
            return where, reports.find(where, artifacts)
        except OptcliError:  # what is wrong with the recipe is said when it is read in earnest
            return where, None
    found = reports.find(where, artifacts)
    recipe = Path(found.report.recipe.path)
    if not recipe.is_file():
        raise UsageError(
            f"the recipe of this report is gone: {shown(recipe)}",
            place=str(found.path),
            hint="optcli verify-accuracy RECIPE --repair VARIANT",
        )
    return recipe, found


def _rejected(report: Report | None) -> str | None:
    """The one variant whose accuracy the last build rejected; None where there are more, or none."""
    found = [
        name
        for name, variant in (report.variants if report is not None else {}).items()
        if any(each.name == "accuracy" and each.outcome == "reject" for each in variant.verdicts)
    ]
    return found[0] if len(found) == 1 else None
