"""Every verb with its own parser, groups such as `cache` with the verbs below them."""

from __future__ import annotations

import click

from optcli.cli import root


def _verbs() -> dict[str, click.Command]:
    verbs: dict[str, click.Command] = {}
    context = click.Context(root)
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        assert command is not None
        verbs[name] = command
        if isinstance(command, click.Group):
            verbs.update({f"{name} {below}": each for below, each in command.commands.items()})
    return verbs


VERBS = _verbs()


def options(command: click.Command) -> set[str]:
    """The options of a verb, as they are written."""
    return {text for one in command.params for text in (*one.opts, *one.secondary_opts)} | {"--help"}


def parse(words: list[str]) -> None:
    """Parse `optcli ...`, given as words; files that it names need not be there.

    Raises what click raises for an unknown option or a value that is none, and LookupError for an
    unknown verb.
    """
    program, *arguments = words
    assert program == "optcli"
    if arguments in ([], ["--help"], ["--version"]):
        return
    name = next((" ".join(arguments[:n]) for n in (2, 1) if " ".join(arguments[:n]) in VERBS), None)
    if name is None:
        raise LookupError(f"no verb {arguments[0]!r}")
    rest = arguments[len(name.split()) :]
    if rest != ["--help"]:
        VERBS[name].make_context(name, rest)
