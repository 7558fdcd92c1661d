"""`optcli infer`: a variant of a build answers stored images."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from optcli.cli import options, reports, tell
from optcli.cli.progress import Progress
from optcli.errors import UsageError


class _BatchSize(click.ParamType[int | None]):
    """`auto` or a number."""

    name = "N|auto"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | None:
        if value == "auto":
            return None
        if not value.isdecimal() or int(value) < 1:
            self.fail(f"found {value!r}, wanted `auto` or a whole number from 1", param, ctx)
        return int(value)


@click.command(
    "infer",
    epilog=options.examples(
        "optcli infer onnx-int8 --input s3://bucket/images --output s3://bucket/answers",
        "optcli infer onnx-int8 recipe.yaml --input photos --output answers --format jsonl",
    ),
)
@click.argument("variant")
@click.argument("where", required=False, type=click.Path(path_type=Path), metavar="[RECIPE|REPORT]")
@click.option(
    "--input",
    "source",
    required=True,
    metavar="URI",
    help="A folder of images or tar files, a .tar file, or a Parquet list with the column `path`.",
)
@click.option(
    "--output",
    "target",
    required=True,
    metavar="URI",
    help="A new folder for the answers, or the folder of a run to go on with.",
)
@click.option(
    "--batch-size",
    type=_BatchSize(),
    default="auto",
    show_default=True,
    help="Images in a call; `auto` first measures 1, 8, 16, 32 and 64 on this machine.",
)
@click.option(
    "--shard",
    "per_shard",
    type=click.IntRange(1),
    default=500,
    show_default=True,
    help="The most images in a shard, whose answers share a file.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["parquet", "jsonl"]),
    default="parquet",
    show_default=True,
    help="The format of the files of answers.",
)
@click.option("--raw", is_flag=True, help="Write the model's outputs in place of classes or boxes.")
@click.option(
    "--workers",
    type=click.IntRange(1),
    help="How many copies of the model work at a time.  [default: as many as the cores allow; in a long"
    " run on this machine one for each core]",
)
@click.option(
    "--ray",
    "address",
    default="local",
    show_default=True,
    metavar="ADDRESS",
    help="Where workers run: `local` is this machine alone, `auto` the Ray cluster that runs here,"
    " HOST:PORT another.",
)
@click.option(
    "--cost-per-hour",
    type=click.FloatRange(min=0, min_open=True),
    help="Price of this machine for an hour, or of a worker in a cluster: the summary then says what"
    " 1,000 images cost.",
)
@click.option(
    "--pictures",
    type=click.IntRange(0, 1000),
    default=0,
    show_default=True,
    help="Draw the first N images with their answers, as JPEGs in the folder `pictures` of the output.",
    metavar="N",
)
@click.option("--restart", is_flag=True, help="Remove the answers that are there, and begin anew.")
@options.artifacts
@options.trust
@options.store
@options.as_json
@options.verbose
def command(
    variant: str,
    where: Path | None,
    source: str,
    target: str,
    batch_size: int | None,
    per_shard: int,
    form: Literal["parquet", "jsonl"],
    raw: bool,
    workers: int | None,
    address: str,
    cost_per_hour: float | None,
    pictures: int,
    restart: bool,
    artifacts: Path | None,
    trust: bool,
    store: Path | None,
    as_json: bool,
) -> None:
    """Answer stored images with VARIANT of the last build.

    optcli prepares images as the recipe says. Answers are classes or boxes, as those of a deployment.
    Each shard of images becomes one file of answers. A run that was killed continues with the missing
    files when you start it again. optcli lists images that it cannot read beside the answers. It
    needs the extra `ray`.
    """
    from optcli.report.inference_text import lines
    from optcli.serving.inference import infer

    if source.rstrip("/") == target.rstrip("/"):
        raise UsageError(
            "answers would lie among the images", place="--output", hint="name another folder"
        )
    place = reports.find(where, artifacts)
    with Progress() as progress:
        result = infer(
            variant,
            place.report,
            place.path,
            source,
            target,
            batch_size=batch_size,
            per_shard=per_shard,
            form=form,
            raw=raw,
            workers=workers,
            address=address,
            cost_per_hour=cost_per_hour,
            restart=restart,
            pictures=pictures,
            recipe=place.recipe,
            trust=trust,
            store=place.opened(store),
            observer=progress,
        )
    tell(result, lines, as_json=as_json)
