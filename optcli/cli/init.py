"""`optcli init`: a first recipe for a model."""

from __future__ import annotations

import json
from pathlib import Path

import click

from optcli.cli import options
from optcli.errors import UsageError
from optcli.paths import shown


@click.command("init")
@click.argument("what")
@click.option(
    "--out", type=click.Path(path_type=Path, dir_okay=False), help="Write it here, not to stdout."
)
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME:DTYPE[SIZES]",
    help='An input, where looking does not find it: "image:float32[batch,3,224,224]".',
)
@click.option("--weights", help="A local file, or a name that the source knows, such as DEFAULT.")
@click.option("--data", type=click.Path(path_type=Path), metavar="FOLDER", help="A folder of images.")
@options.as_json
@options.verbose
def command(
    what: str,
    out: Path | None,
    force: bool,
    inputs: tuple[str, ...],
    weights: str | None,
    data: Path | None,
    as_json: bool,
) -> None:
    """Write a commented recipe for WHAT.

    WHAT is torchvision:NAME, timm:NAME, python:FILE.py:CALLABLE, onnx:PATH, or just the path of a
    model file. Inputs are found by looking, and variants offered that make sense on this machine.
    """
    from optcli.draft import InputText, draft

    if out is not None and out.exists() and not force:
        raise UsageError(
            "this file is there already", place=str(out), hint="add --force, or another name"
        )
    folder = (out.parent if out is not None else Path()).absolute()
    read = tuple(InputText.read(text) for text in inputs)
    made = draft(what, folder, inputs=read, weights=weights, data=data)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(made.recipe.replace("optcli build FILE", f"optcli build {shown(out)}"), "utf-8")
        _schema_beside(out)
    for note in made.notes:
        click.echo(f"note: {note}", err=True)
    if as_json:
        record = {**made.model_dump(mode="json"), "out": str(out) if out else None}
        click.echo(json.dumps(record, indent=2))
    elif out is None:
        click.echo(made.recipe, nl=False)
    else:
        click.echo(f"wrote {shown(out)}: optcli build {shown(out)}")


def _schema_beside(recipe: Path) -> None:
    """Put the schema that the recipe's first line names beside it, in place of an older one."""
    from optcli.recipe import SCHEMA_FILE, schema

    path = recipe.with_name(SCHEMA_FILE)
    text = json.dumps(schema(), indent=2) + "\n"
    if path.exists() and '"optcli recipe"' not in path.read_text("utf-8"):
        return
    path.write_text(text, "utf-8")
