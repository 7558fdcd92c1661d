"""Options that several verbs share, and how they are read."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from optcli.errors import UsageError, did_you_mean
from optcli.results import Report

Command = TypeVar("Command", bound=Callable[..., Any])

store = click.option(
    "--store",
    type=click.Path(path_type=Path, file_okay=False),
    help="The store; default: OPTCLI_STORE, else artifacts/.store.",
)
artifacts = click.option(
    "--artifacts",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where artifacts and reports are laid out; default: OPTCLI_ARTIFACTS, else artifacts.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout.")
overrides = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a value of the recipe, e.g. latency.batch_sizes=[1,4]. May be repeated.",
)
jobs = click.option(
    "--jobs", type=click.IntRange(1), default=1, show_default=True, help="Steps side by side."
)
timeout = click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=3600.0,
    show_default=True,
    help="Seconds that one step may take.",
)
recipe = click.argument("recipe", type=click.Path(path_type=Path))


def verbose(function: Command) -> Command:
    """`-v` for diagnosis on stderr."""

    def begin(_: click.Context, __: click.Parameter, value: int) -> None:
        if value:
            level = logging.DEBUG if value > 1 else logging.INFO
            logging.basicConfig(level=level, format="%(name)s: %(message)s")

    return click.option(
        "-v", "--verbose", count=True, expose_value=False, callback=begin, help="Say more, on stderr."
    )(function)


def artifacts_root(explicit: Path | None) -> Path:
    """Where artifacts and reports are laid out."""
    return (explicit or Path(os.environ.get("OPTCLI_ARTIFACTS") or "artifacts")).absolute()


def find_report(where: Path | None, root: Path) -> tuple[Report, Path]:
    """A report and its path: of a report file or its folder, a recipe, its name, or else the newest."""
    path = _newest(root) if where is None else _report_path(where, root)
    return Report.load(path), path


def _newest(root: Path) -> Path:
    found = sorted(root.glob("*/report.json"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise UsageError("no report here yet", place=str(root), hint="run `optcli build RECIPE` first")
    return found[-1]


def _report_path(where: Path, root: Path) -> Path:
    if where.suffix == ".json":
        return where
    if where.suffix in (".yaml", ".yml"):
        from optcli.recipe import name_of

        return root / name_of(where) / "report.json"
    for folder in (where, root / where):
        if (folder / "report.json").is_file():
            return folder / "report.json"
    known = sorted(path.parent.name for path in root.glob("*/report.json"))
    hint = did_you_mean(where.name, known) or "run `optcli build RECIPE` first"
    raise UsageError("no report here yet", place=str(root / where), hint=hint)
