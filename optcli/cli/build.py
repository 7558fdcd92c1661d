"""`optcli build`: build, measure and judge every variant of a recipe."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import click

from optcli import workers
from optcli.cli import options, show
from optcli.cli.progress import Progress
from optcli.environment import usable_cores
from optcli.files import regular_files
from optcli.store import Store
from optcli.workers import environment_of_steps

# What every worker of a build needs, whatever the recipe says: `optcli.pipeline.messages` has it, too,
# and importing that would take as long as what is to be saved.
GROUND = ("numpy", "optcli.pipeline.step")
# Sources of models that PyTorch reads.
TORCH_SOURCES = ("executorch", "exported", "hf", "python", "timm", "torchscript", "torchvision")
_TORCH_SOURCE = re.compile(rb"\bsource[\"']?\s*:\s*[\"']?(%s):" % "|".join(TORCH_SOURCES).encode())
_LOOK_BYTES = 1 << 16


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
    with early_workers(opened_store, recipe), Progress() as progress:
        # Not before: the early workers import at the same time.
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


# Workers for a build that has everything to do, started before its recipe is read.
#
# Reading a recipe takes as long as importing what each worker needs. On a second core both happen at
# once. A look at the recipe's text says whether PyTorch will be needed, which takes longest to import.
# Where the store holds something, there may be nothing to do: then no worker is started ahead.


def early_workers(store: Store, recipe: Path) -> AbstractContextManager[None]:
    """Start a server of workers where there is a second core and the store is empty.

    The server ends with the block, unless a build has taken it.
    """
    cores = usable_cores()
    if cores < 2 or store.remote_place is not None or (store.root / "entries").exists():
        return nullcontext()
    modules = (*GROUND, "torch") if _names_torch_source(recipe) else GROUND
    return workers.early_server(modules, environment_of_steps(cores))


def _names_torch_source(recipe: Path) -> bool:
    """Whether the text seems to name such a source. Nothing but time hangs on that."""
    with suppress(OSError), regular_files.opened(recipe) as stream:
        return _TORCH_SOURCE.search(stream.read(_LOOK_BYTES)) is not None
    return False
