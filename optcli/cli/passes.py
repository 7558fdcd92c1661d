"""`optcli passes`: the passes there are, and the options of one."""

from __future__ import annotations

import inspect
import json

import click

from optcli import passes
from optcli.cli import options


@click.command("passes")
@click.argument("name", required=False)
@options.as_json
def command(name: str | None, as_json: bool) -> None:
    """List the passes, or show what NAME does, reads and takes as options."""
    names = [name] if name else list(passes.own_names())
    kinds = {one: passes.find(one) for one in names}
    if as_json:
        click.echo(json.dumps({one: kind.model_json_schema() for one, kind in kinds.items()}, indent=2))
    elif name:
        _show(name, kinds[name])
    else:
        for one, kind in kinds.items():
            reads = ", ".join(kind.accepts)
            click.echo(f"{one:<18} {inspect.getdoc(kind).splitlines()[0]}\n{'':<18} reads {reads}")  # type: ignore[union-attr]
        click.echo("\n`optcli passes NAME` shows the options of one.")


def _show(name: str, kind: type[passes.Pass]) -> None:
    click.echo(f"{name}\n\n{inspect.getdoc(kind)}\n")
    click.echo(f"reads:  {', '.join(kind.accepts)}")
    click.echo(f"uses:   {', '.join(kind.uses) or 'no data'}")
    click.echo(
        f"needs:  {', '.join(kind.needs.packages)}{' and a GPU' if kind.needs.gpu else ''}\n\noptions:"
    )
    for option, field in kind.model_fields.items():
        kind_of = inspect.formatannotation(field.annotation)
        click.echo(f"  {option}: {kind_of} = {field.default!r}\n      {field.description or ''}")
