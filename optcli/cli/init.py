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
from optcli.errors import OptcliError, RecipeError, UsageError
from optcli.paths import shown

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
    help="Images in class folders, images beside masks, or COCO's annotations (a JSON file too).",
)
@options.overrides
@options.trust
@options.as_json
@options.verbose
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

    WHAT is torchvision:NAME, timm:NAME, python:FILE.py:CALLABLE, onnx:PATH, or just the path of a
    model file. optcli reads the inputs from the model, and writes variants that suit this machine. It
    recognizes images in class folders, boxes in COCO's format and segmentation masks. For masks it also
    writes masks.py, which reads them, beside the recipe.
    """
    from optcli.scaffold import InputText, draft

    if out is not None and out.exists() and not force:
        raise _taken(out, "add --force, or another name")
    folder = (out.parent if out is not None else Path()).absolute()
    read = tuple(InputText.read(text) for text in inputs)
    recipe_draft = draft(
        what, folder, inputs=read, weights=weights, data=data, overrides=overrides, trust=trust
    )
    command_line = f"optcli build {shlex.quote(shown(out))}" if out is not None else ""
    if out is not None:
        _write(out, recipe_draft, command_line, overrides, force=force)
    elif recipe_draft.files:
        click.echo(
            f"note: --out FILE writes {', '.join(recipe_draft.files)} beside the recipe too", err=True
        )
    for note in recipe_draft.notes:
        click.echo(f"note: {note}", err=True)
    if as_json:
        record = {**recipe_draft.model_dump(mode="json"), "out": str(out) if out else None}
        click.echo(json.dumps(record, indent=2))
    elif out is None:
        click.echo(recipe_draft.recipe, nl=False)
    else:
        beside = "".join(f" and {shown(out.parent / name)}" for name in recipe_draft.files)
        click.echo(f"wrote {shown(out)}{beside}: {command_line}")


def _write(
    out: Path, recipe_draft: Draft, command_line: str, overrides: tuple[str, ...], *, force: bool
) -> None:
    """Write the recipe and what it names beside itself, once the recipe is known to be right."""
    from optcli.recipe import load

    fresh = out.with_name(f".{out.name}.{os.getpid()}.yaml")
    beside = {out.with_name(name): text for name, text in recipe_draft.files.items()}
    for path, text in beside.items():
        if path.exists() and path.read_text("utf-8") != text and not force:
            raise _taken(path, "add --force, or another folder")
    new = [path for path in beside if not path.exists()]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        for path, text in beside.items():
            path.write_text(text, "utf-8")
        fresh.write_text(recipe_draft.recipe.replace("optcli build FILE", command_line), "utf-8")
        try:
            load(fresh)
        except RecipeError as error:
            for path in new:
                path.unlink()
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


def _taken(path: Path, hint: str) -> UsageError:
    return UsageError("this file is there already", place=str(path), hint=hint)


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
