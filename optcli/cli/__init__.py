"""The command line: one file per verb. Each parses, calls one workflow and prints."""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from optcli import __version__
from optcli.errors import NO_ROOM, ExitCode, OptcliError, UsageError, did_you_mean, strerror

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

    from optcli.results.document import Document

# So many new objects until Python looks for garbage: importing a verb makes as many, and all stay.
# With this, and with no last look at the end, a build with nothing to do takes 0.43 s instead of 0.46.
_YOUNG = 100_000
# By task, verb to its one-line help: shown without importing the verb, which keeps --help instant.
_TASKS = {
    "Start": {
        "init": "Write a first recipe for a model.",
        "doctor": "Say what works on this machine, what is missing and how to get it.",
        "passes": "List the passes, or show the options of one.",
        "schema": "Print the JSON Schema of recipes, for editors.",
    },
    "Build": {
        "build": "Build, measure and judge every variant of a recipe.",
        "tune": "Search for the fastest artifact that keeps the accuracy bar.",
        "bench": "Measure model files that no recipe built, side by side.",
    },
    "Look": {
        "compare": "Show the table of the last build, or what changed between reports.",
        "profile": "Show where a variant's time goes: by stage, by operator, and in words.",
        "roofline": "Measure what this machine can do at most, for compare --roofline.",
        "inspect": "Show what a model holds: operators, precision, parameters, operations, size.",
    },
    "Decide": {
        "verify-accuracy": "Show what each artifact of the last build costs in accuracy.",
        "gate": "Block a merge that makes the model slower, bigger or worse.",
        "baseline": "Keep a build to compare later ones with: save, ls.",
        "history": "Show how the gate's figures went over time.",
    },
    "Serve": {
        "plan": "Turn a promise into a serving configuration: batch size, wait, instances.",
        "deploy": "Write a server for Ray Serve, Triton or KServe from a variant and a plan.",
        "serve": "Start the Ray server that deploy wrote, on this machine.",
        "loadtest": "Send traffic to a running server and say whether it keeps its promise.",
        "infer": "Answer stored images with a variant: classes or boxes for each image.",
    },
    "Maintain": {
        "cache": "Look into the store: ls, verify, why, gc.",
    },
}
_VERBS = {verb: about for verbs in _TASKS.values() for verb, about in verbs.items()}
# Where a person gets what a verb was not given, by the argument's name in its usage.
_SOURCES = {
    "RECIPE": "`optcli init MODEL --out recipe.yaml` writes one",
    "VARIANT": "`optcli compare` lists the variants of the last build",
    "FILE...": "name model files, such as model.onnx",
    "FILE": "`optcli gate --history FILE` writes one",
    "WHAT": "name a model, such as torchvision:resnet50 or model.onnx",
    "FOLDER": "`optcli deploy VARIANT --target ray` writes one",
    "TARGET": "name a model file, a recipe, or a variant of the last build",
    "NAME": "choose a name, such as released",
    "FOLDER|URL": "name what `optcli deploy --target ray` wrote, or a URL such as http://127.0.0.1:8000",
}


class _Verbs(click.Group):
    """Imports a verb's module when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _VERBS:
            return None
        module = importlib.import_module(f"optcli.cli.{name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(map(len, _VERBS))
        for task, verbs in _TASKS.items():
            with formatter.section(task):
                formatter.write_dl([(verb.ljust(widest), about) for verb, about in verbs.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in _VERBS:
            hint = did_you_mean(args[0], list(_VERBS))
            raise UsageError(f"unknown verb {args[0]!r}", place="optcli", hint=hint)
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Verbs,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\n".join(["\b", "Exit codes:", *(f"  {code:3}  {code.meaning}" for code in ExitCode)]),
)
@click.version_option(__version__, prog_name="optcli")
def root() -> None:
    """Build, measure and judge optimized variants of a vision model, from one recipe.

    A recipe names a model, its data and variants: chains of passes, such as an export and a
    quantization. `optcli init MODEL --out recipe.yaml` writes a first one, and `optcli build
    recipe.yaml` says which variant to serve. `optcli VERB --help` shows the options of a verb and two
    examples.
    """


def main() -> NoReturn:
    """Run the command line and exit with the code that `optcli --help` documents."""
    from optcli.cli import streams

    gc.set_threshold(_YOUNG)
    streams.prepare()
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        # Whoever has a signal ignored, as nohup does, means it.
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)
    if hasattr(signal, "SIGCHLD"):  # inherited as ignored, it would hide how workers ended
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    go_past_proxies_on_loopback()
    call_the_user()
    code = int(run(sys.argv[1:]))
    gc.disable()
    if _received:
        # Python ends by SIGINT, whatever was caught, where an interrupt fell into an exec() of text.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def go_past_proxies_on_loopback() -> None:
    """Let libraries, such as those of S3, reach servers of this machine without HTTP_PROXY."""
    without = os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")
    for name in ("no_proxy", "NO_PROXY") if without != "*" else ():
        os.environ[name] = ",".join(filter(None, (without, "localhost,127.0.0.1,::1")))


def call_the_user() -> None:
    """Name a user without an entry in passwd, as containers have: torch 2.9 asks for the name."""
    import pwd

    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        os.environ.setdefault("LOGNAME", f"uid{os.getuid()}")


_received: list[int] = []


def _end(number: int, _: FrameType | None) -> NoReturn:
    """End the program with everything that Ctrl-C cleans up."""
    _received.append(number)
    raise KeyboardInterrupt


def run(arguments: list[str]) -> int:
    """Run one command line; gives its exit code. Errors go to stderr, results to stdout."""
    try:
        code = root.main(args=arguments, prog_name="optcli", standalone_mode=False)
        return int(code or 0)
    except click.exceptions.Exit as stop:
        return int(stop.exit_code)
    except (Exception, KeyboardInterrupt) as error:
        # Whatever came of a signal: in the midst of an import, one turns into an ImportError.
        if _received or isinstance(error, KeyboardInterrupt | click.Abort):
            return _interrupted(_received[0] if _received else signal.SIGINT)
        return _failed(error)


def _interrupted(number: int) -> int:
    name = signal.Signals(number).name
    how = "interrupted" if number == signal.SIGINT else f"ended by {name}"
    _say(f"{how}: what was finished is kept, the next run goes on from there")
    return 128 + number


def _failed(error: Exception | KeyboardInterrupt) -> int:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        _say(error.format_message())
        return ExitCode.WRONG_RECIPE
    if isinstance(error, click.ClickException):
        context = error.ctx if isinstance(error, click.UsageError) else None
        where = context.command_path if context else "optcli"
        hint = f"see `{where} --help`"
        missing = error.param if isinstance(error, click.MissingParameter) else None
        if context is not None and isinstance(missing, click.Argument):
            hint = f"{_SOURCES[missing.make_metavar(context)]}; {hint}"
        _say(f"error: {error.format_message()}\n  hint: {hint}")
        return ExitCode.WRONG_RECIPE
    if isinstance(error, OptcliError):
        _say(f"error: {error}")
        return error.exit_code
    if isinstance(error, OSError):
        # The disk or the terminal refused something: the reader's to mend, not a bug.
        import logging

        logging.getLogger(__name__).info("the system refused", exc_info=error)
        place = f"{error.filename}: " if error.filename else ""
        wanted = (
            "make room (`optcli cache gc`) or raise the limit (`ulimit -a` lists them)"
            if error.errno in NO_ROOM
            else "look at space, permissions and limits (ulimit -a)"
        )
        _say(
            f"error: {place}the system refused: {strerror(error)}\n"
            f"  hint: {wanted}; -v shows where it happened"
        )
        return ExitCode.FAILED
    import traceback

    traceback.print_exception(error)
    _say(
        f"error: this is a bug in optcli {__version__}, not your mistake\n"
        "  hint: please report it with the traceback above and your recipe"
    )
    return ExitCode.BUG


def _say(text: str) -> None:
    click.echo(text, err=True)


def show(result: Any, document: Document, *, as_json: bool = False) -> None:
    """Print a result to stdout: as JSON, laid out for a terminal, or one line a row for a pipe."""
    if as_json:
        plain = not hasattr(result, "model_dump_json")
        text = json.dumps(result, indent=2, default=str) if plain else None
        click.echo(text or result.model_dump_json(indent=2, by_alias=True))
        return
    from optcli.report import terminal

    if not sys.stdout.isatty():
        click.echo(terminal.text(document), nl=False)
        return
    from rich.console import Console
    from rich.segment import Segment

    from optcli.cli import streams

    class Printable(Console):
        """Of what is shown, rich's own colours alone control the terminal."""

        def render(self, *arguments: Any, **options: Any) -> Iterable[Segment]:
            for text, style, control in super().render(*arguments, **options):
                yield Segment(text if control else streams.printable(text), style, control)

    Printable(file=streams.controlling(sys.stdout)).print(terminal.renderable(document))
