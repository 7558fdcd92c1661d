"""`optcli schema`: the JSON Schema of recipes, for editors to complete and check with."""

from __future__ import annotations

import json

import click

from optcli.cli import options


@click.command("schema", epilog=options.examples("optcli schema", "optcli schema > recipe.schema.json"))
def command() -> None:
    """Print the JSON Schema of recipes.

    Save it beside your recipes as recipe.schema.json, and begin them with
    `# yaml-language-server: $schema=recipe.schema.json`, as those of `optcli init` do.
    """
    from optcli.recipe import schema

    click.echo(json.dumps(schema(), indent=2))
