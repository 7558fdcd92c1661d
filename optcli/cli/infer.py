"""`optcli infer`: a variant of a build answers stored images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

from optcli.cli import options, reports, show
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


@dataclass(frozen=True)
class InferenceOptions:
    """What `optcli infer` alone takes."""

    source: str = options.option(
        "--input",
        required=True,
        metavar="URI",
        help="A folder of images or tar files, a .tar file, or a Parquet list with the column `path`.",
    )
    target: str = options.option(
        "--output",
        required=True,
        metavar="URI",
        help="A new folder for the answers, or the folder of a run to go on with.",
    )
    batch_size: int | None = options.option(
        "--batch-size",
        type=_BatchSize(),
        default="auto",
        show_default=True,
        help="Images in a call; `auto` first measures 1, 8, 16, 32 and 64 on this machine.",
    )
    per_shard: int = options.option(
        "--shard",
        type=click.IntRange(1),
        default=500,
        show_default=True,
        help="The most images in a shard, whose answers share a file.",
    )
    form: Literal["parquet", "jsonl"] = options.option(
        "--format",
        type=click.Choice(["parquet", "jsonl"]),
        default="parquet",
        show_default=True,
        help="The format of the files of answers.",
    )
    raw: bool = options.option(
        "--raw", is_flag=True, help="Write the model's outputs in place of classes or boxes."
    )
    workers: int | None = options.option(
        "--workers",
        type=click.IntRange(1),
        help="How many copies of the model work at a time.  [default: as many as the cores allow; in"
        " a long run on this machine one for each core]",
    )
    address: str = options.option(
        "--ray",
        default="local",
        show_default=True,
        metavar="ADDRESS",
        help="Where workers run: `local` is this machine alone, `auto` the Ray cluster that runs here,"
        " HOST:PORT another.",
    )
    cost_per_hour: float | None = options.option(
        "--cost-per-hour",
        type=click.FloatRange(min=0, min_open=True),
        help="Price of this machine for an hour, or of a worker in a cluster: the summary then says"
        " what 1,000 images cost.",
    )
    restart: bool = options.option(
        "--restart", is_flag=True, help="Remove the answers that are there, and begin anew."
    )


@click.command(
    "infer",
    epilog=options.examples(
        "optcli infer onnx-int8 --input s3://bucket/images --output s3://bucket/answers",
        "optcli infer onnx-int8 recipe.yaml --input photos --output answers --format jsonl",
    ),
)
@click.argument("variant")
@click.argument("where", required=False, type=click.Path(path_type=Path), metavar="[RECIPE|REPORT]")
@options.group("given", InferenceOptions)
@options.artifacts
@options.trust
@options.store
@options.output
def command(
    variant: str,
    where: Path | None,
    given: InferenceOptions,
    artifacts: Path | None,
    trust: bool,
    store: Path | None,
    as_json: bool,
) -> None:
    """Answer stored images with VARIANT of the last build.

    optcli prepares images as the recipe says. Answers are classes or boxes, as those of a deployment.
    Each shard of images becomes one file of answers. A run that was killed continues with the missing
    files when you start it again. optcli lists images that it cannot read beside the answers.
    Parquet needs the extra `parquet`, workers on a cluster need the extra `ray`.
    """
    from optcli.report.inference import document
    from optcli.serving.inference import InferenceSettings, infer

    if given.source.rstrip("/") == given.target.rstrip("/"):
        raise UsageError(
            "answers would lie among the images", place="--output", hint="name another folder"
        )
    place = reports.find(where, artifacts)
    with Progress() as progress:
        result = infer(
            variant,
            place.report,
            place.path,
            given.source,
            given.target,
            settings=options.settings_of(InferenceSettings, given),
            recipe=place.recipe,
            trust=trust,
            store=place.opened(store),
            observer=progress,
        )
    show(result, document(result), as_json=as_json)
