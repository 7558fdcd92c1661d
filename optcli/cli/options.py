"""Options that several verbs share, and how they are read."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from optcli.cli import committed_links
from optcli.cli.committed_links import OutputPath
from optcli.errors import UsageError, raised_as, strerror

if TYPE_CHECKING:
    from optcli.store import Store

Command = TypeVar("Command", bound=Callable[..., Any])
Settings = TypeVar("Settings")


FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
PATH = click.Path(path_type=Path)
# What is written.
OUT_FILE = OutputPath(path_type=Path, dir_okay=False)
OUT_FOLDER = OutputPath(path_type=Path, file_okay=False)
OUT_PATH = OutputPath(path_type=Path)


def examples(*commands: str) -> str:
    """The end of a verb's help."""
    return "\n".join(["\b", "Examples:", *(f"  {command}" for command in commands)])


def option(*flags: str, **attributes: Any) -> Any:
    """A field of a dataclass whose value is an option of the command line, as `click.option` has it."""
    return dataclasses.field(metadata={"flags": flags, "attributes": attributes})


def group(name: str, kind: type[Any]) -> Callable[[Command], Command]:
    """The options that are fields of `kind`: a verb gets them as one, in its parameter `name`."""
    members = dataclasses.fields(kind)

    def gathered(function: Command) -> Any:
        @functools.wraps(function)
        def call(**values: Any) -> Any:
            own = {each.name: values.pop(each.name) for each in members}
            return function(**values, **{name: kind(**own)})

        for each in reversed(members):
            named = click.option(*each.metadata["flags"], each.name, **each.metadata["attributes"])
            call = named(call)
        return call

    return gathered


def settings_of(kind: Callable[..., Settings], *groups: Any, **values: Any) -> Settings:
    """An object of a dataclass: options of `groups` give the fields of their names, `values` the rest.

    Where both have a field, `values` counts: it holds what was read from the option's text.
    """
    names = {each.name for each in dataclasses.fields(cast(Any, kind))}
    given = {name: value for each in groups for name, value in vars(each).items() if name in names}
    return kind(**{**given, **values})


store = click.option(
    "--store",
    type=OUT_FOLDER,
    help="The store: the folder of results that later builds take. Default: OPTCLI_STORE, else"
    " artifacts/.store.",
)


def _for_opened(context: click.Context, option: click.Parameter, value: Any) -> None:
    context.meta[str(option.name)] = value


_remote_store = click.option(
    "--remote-store",
    metavar="URL",
    expose_value=False,
    callback=_for_opened,
    help="A store that machines share, such as s3://bucket/prefix; default: OPTCLI_REMOTE_STORE, else"
    " `remote_store` in ~/.config/optcli/config.toml.",
)
_remote_readonly = click.option(
    "--remote-readonly",
    is_flag=True,
    expose_value=False,
    callback=_for_opened,
    help="Write nothing to the remote store; also by OPTCLI_REMOTE_READONLY=1.",
)


def remote(function: Command) -> Command:
    """`--remote-store` and `--remote-readonly`, which `opened` reads: a verb does not see them."""
    return _remote_store(_remote_readonly(function))


def opened(store: Path | None) -> Store:
    """The store that a verb's options name, with the remote one beside it. Raises `UsageError`."""
    from optcli.store import Store

    committed_links.refuse(Store.default_root(store))
    given = click.get_current_context().meta
    return Store.at(store, given.get("remote_store"), read_only=given.get("remote_readonly", False))


def warn(step: str, message: str) -> None:
    """Tell a warning of a verb that shows no progress, on stderr."""
    click.echo(printable(f"{step}: {message}"), err=True)


def printable(text: str) -> str:
    """A text of somebody else's without what a terminal would obey."""
    return "".join(each for each in text if each.isprintable())


artifacts = click.option(
    "--artifacts",
    type=OUT_FOLDER,
    help="Where artifacts and reports are laid out; default: OPTCLI_ARTIFACTS, else artifacts.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout.")
overrides = click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a value of the recipe, e.g. 'latency.batch_sizes=[1,4]'. May be repeated.",
)
jobs = click.option(
    "--jobs",
    type=click.IntRange(1),
    help="How many steps run side by side.  [default: 2 where cores and memory allow, else 1; 16 with"
    " --ray]",
)
jobs_here = click.option(
    "--jobs",
    type=click.IntRange(1),
    help="How many steps of a build run side by side.  [default: 2 where cores and memory allow, else"
    " 1]",
)
ray = click.option(
    "--ray",
    metavar="auto|HOST:PORT|local",
    help="Run passes and evaluations on a Ray cluster: the one that runs here (auto), the one at an"
    " address, or one that optcli starts for this (local).",
)
inputs = click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="NAME:DTYPE[SIZES]",
    help='An input that the model does not declare: "image:float32[batch,3,224,224]".',
)
trust = click.option(
    "--trust",
    is_flag=True,
    help="Open models from elsewhere although they could run code. Use it if you know who made them.",
)


# Such files are no models: to know those of models takes imports that early workers need not wait for.
_OF_RECIPES = (".yaml", ".yml")


def _no_model(_: click.Context, __: click.Parameter, path: Path) -> Path:
    """A model's file in the place of a recipe: said at once, and what to do with it."""
    if path.suffix.lower() in _OF_RECIPES:
        return path
    from optcli.models.formats import model_files

    if path.suffix.lower() in model_files.SUFFIXES and path.is_file():
        raise UsageError(
            "this is a model file, wanted a recipe",
            place=str(path),
            hint=f"optcli init {path} --out recipe.yaml writes one; `optcli bench {path}` needs none",
        )
    return path


recipe = click.argument("recipe", type=PATH, callback=_no_model)


def timeout(of: str) -> Callable[[Command], Command]:
    """`--timeout`: how long one step, or whatever else is meant, may take."""
    return click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=3600.0,
        show_default=True,
        help=f"Seconds that one {of} may take.",
    )


def verbose(function: Command) -> Command:
    """`-v` for diagnosis on stderr."""

    def begin(_: click.Context, __: click.Parameter, value: int) -> None:
        if value:
            level = logging.DEBUG if value > 1 else logging.INFO
            logging.basicConfig(level=level, format="%(name)s: %(message)s")

    return click.option(
        "-v", "--verbose", count=True, expose_value=False, callback=begin, help="Print more, to stderr."
    )(function)


def output(function: Command) -> Command:
    """`--json` and `-v`: how a verb answers, and what it says meanwhile."""
    return as_json(verbose(function))


def write(path: Path, text: str) -> None:
    """Write what was asked for into a file. Raises `UsageError` where it cannot be written."""
    message = "cannot be written"
    hint = "name another file"
    with raised_as(UsageError, message, of=OSError, reason=strerror, place=str(path), hint=hint):
        path.write_text(text, encoding="utf-8")
