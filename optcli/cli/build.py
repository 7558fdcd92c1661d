"""`optcli build`: build, measure and judge every variant of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from optcli.cli import options, show
from optcli.cli.progress import Progress


@dataclass(frozen=True)
class BuildOptions:
    """What `optcli build` alone takes."""

    only: tuple[str, ...] = options.option(
        "--only", multiple=True, metavar="VARIANT", help="Build just these, and the baseline."
    )
    keep_going: bool = options.option(
        "--keep-going/--fail-fast",
        default=True,
        show_default=True,
        help="Whether other steps still run after one has failed.",
    )
    no_latency: bool = options.option(
        "--no-latency", is_flag=True, help="Measure no latency: judge accuracy alone."
    )
    remeasure: bool = options.option(
        "--remeasure", is_flag=True, help="Measure latency and accuracy again."
    )
    dry_run: bool = options.option(
        "--dry-run", is_flag=True, help="Show the steps and what is cached; do nothing."
    )
    explain: bool = options.option(
        "--explain", is_flag=True, help="Like --dry-run, and say why each step must run."
    )


@click.command(
    "build",
    epilog=options.examples(
        "optcli build recipe.yaml", "optcli build recipe.yaml --only onnx-int8 --set latency.mode=table"
    ),
)
@options.recipe
@options.store
@options.remote
@options.artifacts
@options.overrides
@options.group("given", BuildOptions)
@options.jobs
@options.timeout("step")
@options.trust
@options.ray
@options.output
def command(
    recipe: Path,
    store: Path | None,
    artifacts: Path | None,
    overrides: tuple[str, ...],
    given: BuildOptions,
    jobs: int | None,
    timeout: float,
    trust: bool,
    ray: str | None,
    as_json: bool,
) -> int:
    """Build, measure and judge every variant of RECIPE.

    A build takes from the store what is there already, and makes the rest. It writes the report to
    artifacts/NAME/report.json, and the files of each variant beside it. The last line names the exit
    code and its reason.
    """
    opened_store = options.opened(store)
    overrides = (*overrides, *(["latency.mode=off"] if given.no_latency else ()))
    if given.dry_run or given.explain:
        from optcli.pipeline.preview import preview

        steps, record = preview(
            recipe,
            store=opened_store,
            overrides=overrides,
            only=given.only,
            explain=given.explain,
            trust=trust,
            tell=options.warn,
        )
        show(record, steps, as_json=as_json)
        return 0
    with Progress() as progress:
        from optcli.cli import reports
        from optcli.pipeline.building import build
        from optcli.pipeline.execute import BuildSettings, usual_jobs
        from optcli.report.build import document
        from optcli.report.notes import ending

        report = build(
            recipe,
            store=opened_store,
            artifacts=reports.root_to_write(artifacts),
            overrides=overrides,
            only=given.only,
            settings=BuildSettings(jobs or usual_jobs(ray), given.keep_going, timeout, trust, ray),
            remeasure=given.remeasure,
            observer=progress,
        )
    show(report, document(report), as_json=as_json)
    if as_json:
        click.echo(ending(report), err=True)
    return report.exit_code
