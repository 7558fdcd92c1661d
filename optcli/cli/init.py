"""`optcli init`: a first recipe for a model."""

from __future__ import annotations

import json
import os
import shlex
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from optcli.cli import options
from optcli.errors import OptcliError, RecipeError, UsageError, shown_path

if TYPE_CHECKING:
    from optcli.scaffold import Draft


@click.command(
    "init",
    epilog=options.examples(
        "optcli init torchvision:resnet50 --data photos --out recipe.yaml",
        "optcli init model.onnx --out recipe.yaml",
    ),
)
@click.argument("what")
@click.option("--out", type=options.OUT_FILE, help="Write it here, not to stdout.")
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@options.inputs
@click.option("--weights", help="A local file, or a name that the source knows, such as DEFAULT.")
@click.option(
    "--data",
    type=options.PATH,
    metavar="FOLDER",
    help="Data: class folders, masks beside images, tables, COCO, YOLO, Pascal VOC, Parquet.",
)
@options.overrides
@options.trust
@options.output
def command(
    what: str,
    out: Path | None,
    force: bool,
    inputs: tuple[str, ...],
    weights: str | None,
    data: Path | None,
    overrides: tuple[str, ...],
    trust: bool,
    as_json: bool,
) -> None:
    """Write a commented recipe for WHAT.

    WHAT is torchvision:NAME, timm:NAME, hf:FOLDER, python:FILE.py:CALLABLE, onnx:PATH, or just the
    path of a model file. optcli reads the inputs from the model, and writes variants that suit this
    machine. It recognizes the layouts of data that recipes read.
    """
    from optcli.scaffold import InputText, draft

    if out is not None and out.exists() and not force:
        hint = "add --force, or another name"
        raise UsageError("this file is there already", place=str(out), hint=hint)
    folder = (out.parent if out is not None else Path()).absolute()
    read = tuple(InputText.read(text) for text in inputs)
    recipe_draft = draft(
        what, folder, inputs=read, weights=weights, data=data, overrides=overrides, trust=trust
    )
    command_line = f"optcli build {shlex.quote(shown_path(out))}" if out is not None else ""
    if out is not None:
        _write(out, recipe_draft, command_line, overrides)
    for note in recipe_draft.notes:
        click.echo(f"note: {note}", err=True)
    if as_json:
        record = {**recipe_draft.model_dump(mode="json"), "out": str(out) if out else None}
        click.echo(json.dumps(record, indent=2))
    elif out is None:
        click.echo(recipe_draft.recipe, nl=False)
    else:
        click.echo(f"wrote {shown_path(out)}: {command_line}")


def _write(out: Path, recipe_draft: Draft, command_line: str, overrides: tuple[str, ...]) -> None:
    """Write the recipe, once it is known to be right."""
    from optcli.recipe import load

    fresh = out.with_name(f".{out.name}.{os.getpid()}.yaml")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(recipe_draft.recipe.replace("optcli build FILE", command_line), "utf-8")
        try:
            load(fresh)
        except RecipeError as error:
            raise _not_set(error, overrides, fresh) from error
        fresh.replace(out)
        _schema_beside(out)
    except OSError as error:
        raise UsageError(
            f"cannot be written: {error.strerror or error}",
            place=str(out),
            hint="name another file with --out",
        ) from error
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)


def _not_set(error: RecipeError, overrides: tuple[str, ...], fresh: Path) -> OptcliError:
    """The error of a recipe that `--set` made wrong; without `--set` the draft's own error."""
    if not overrides:
        return error
    problems = "; ".join(
        f"{each.message}" + (f" ({each.hint})" if each.hint else "") for each in error.problems
    )
    return UsageError(
        problems.replace(str(fresh), "the recipe"),
        place=f"--set {' --set '.join(overrides)}",
        hint="the recipe was not written",
    )


def _schema_beside(recipe: Path) -> None:
    """Put the schema that the recipe's first line names beside it, in place of an older one."""
    from optcli.recipe import SCHEMA_FILE, schema

    path = recipe.with_name(SCHEMA_FILE)
    text = json.dumps(schema(), indent=2) + "\n"
    if path.exists() and '"optcli recipe"' not in path.read_text("utf-8"):
        return
    path.write_text(text, "utf-8")
