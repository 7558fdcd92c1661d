"""`optcli passes`: the passes there are, and the options of one."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import click

from optcli import passes, registry
from optcli.cli import options
from optcli.errors import UsageError
from optcli.passes import Pass
from optcli.workers import Channel, run


@click.command("passes")
@click.argument("name", required=False)
@options.as_json
def command(name: str | None, as_json: bool) -> None:
    """List the passes, or show what NAME does, reads and takes as options.

    NAME may also be FILE.py:CLASS or module:CLASS, a pass of your own.
    """
    found = {one: _about(one) for one in ([name] if name else passes.names())}
    if as_json:
        click.echo(json.dumps({one: about["schema"] for one, about in found.items()}, indent=2))
    elif name:
        _show(name, found[name])
    else:
        for one, about in found.items():
            reads = ", ".join(about["reads"])
            click.echo(f"{one:<18} {about['help'].splitlines()[0]}\n{'':<18} reads {reads}")
        click.echo("\n`optcli passes NAME` shows the options of one.")


def describe(payload: dict[str, Any], channel: Channel) -> dict[str, Any]:
    """In a worker: what a pass of somebody else's code says of itself."""
    from optcli import user_code

    kind = user_code.load(payload["reference"], Path(payload["folder"]))
    if not (inspect.isclass(kind) and issubclass(kind, Pass)):
        raise UsageError(
            f"{payload['reference']} is not a pass: wanted a subclass of optcli.passes.Pass",
            hint="see docs/add-a-pass.md",
        )
    return _of(kind)


def _about(name: str) -> dict[str, Any]:
    offered = registry.entry_points("optcli.passes")
    if name in passes.own_names() or (name not in offered and ":" not in name):
        return _of(passes.find(name))
    payload = {"reference": offered.get(name, name), "folder": str(Path.cwd())}
    return dict(run("optcli.cli.passes:describe", payload, timeout_s=300))


def _of(kind: type[Pass]) -> dict[str, Any]:
    return {
        "help": inspect.getdoc(kind) or "",
        "reads": [str(one) for one in getattr(kind, "accepts", ())],
        "uses": list(kind.uses),
        "needs": [*kind.needs.packages, *(["a GPU"] if kind.needs.gpu else [])],
        "options": [
            {
                "name": name,
                "type": inspect.formatannotation(field.annotation),
                "default": "required" if field.is_required() else repr(field.default),
                "help": field.description or "",
            }
            for name, field in kind.model_fields.items()
        ],
        "schema": kind.model_json_schema(),
    }


def _show(name: str, about: dict[str, Any]) -> None:
    click.echo(f"{name}\n\n{about['help']}\n")
    click.echo(f"reads:  {', '.join(about['reads'])}")
    click.echo(f"uses:   {', '.join(about['uses']) or 'no data'}")
    click.echo(f"needs:  {', '.join(about['needs']) or 'nothing more'}\n\noptions:")
    for option in about["options"]:
        click.echo(
            f"  {option['name']}: {option['type']} = {option['default']}\n      {option['help']}"
        )
    if not about["options"]:
        click.echo("  none")
