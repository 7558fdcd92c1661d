"""`optcli profile`: where the time of one variant goes."""

from __future__ import annotations

from pathlib import Path

import click

from optcli.cli import options, reports, show
from optcli.cli.progress import Progress


@click.command(
    "profile",
    epilog=options.examples(
        "optcli profile onnx-int8",
        "optcli profile onnx-int8 --recipe recipe.yaml --batch-size 8 --trace trace.json",
    ),
)
@click.argument("variant")
@click.option(
    "--recipe",
    type=options.PATH,
    metavar="NAME|RECIPE.yaml",
    help="The recipe whose last build has VARIANT; default: the one that was built last.",
)
@options.artifacts
@click.option(
    "--batch-size", type=click.IntRange(1), help="Images per call; default: the smallest batch size."
)
@click.option(
    "--top",
    type=click.IntRange(0),
    default=15,
    show_default=True,
    help="How many of the slowest operators to list.",
)
@click.option(
    "--trace",
    type=options.OUT_FILE,
    metavar="FILE",
    help="Where the Chrome trace goes; default: profiles/VARIANT.trace.json beside the report.",
)
@options.trust
@options.store
@options.output
def command(
    variant: str,
    recipe: Path | None,
    artifacts: Path | None,
    batch_size: int | None,
    top: int,
    trace: Path | None,
    trust: bool,
    store: Path | None,
    as_json: bool,
) -> None:
    """Show where the time of VARIANT goes: by stage, by operator, and in words the largest costs.

    VARIANT is one of the last build. optcli runs it in a process of its own with the runner's settings,
    and calls it with and without the runtime's profiler in turns. chrome://tracing and Perfetto open
    the trace.
    """
    from optcli.measure.profiling import document
    from optcli.pipeline.model_files.built_variant import profile

    place = reports.find(recipe, artifacts)
    with Progress() as progress:
        operator_times = profile(
            variant,
            place.report,
            place.path,
            recipe=place.recipe,
            batch_size=batch_size,
            trace=trace.absolute() if trace is not None else None,
            trust=trust,
            store=place.opened(store),
            observer=progress,
        )
    show(operator_times, document(operator_times, top), as_json=as_json)
