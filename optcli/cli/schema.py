"""`optcli schema`: the JSON Schema of recipes, for editors to complete and check with."""

from __future__ import annotations

import json

import click


@click.command("schema")
def command() -> None:
    """Print the JSON Schema of recipes.

    Save it, and begin a recipe with `# yaml-language-server: $schema=recipe.schema.json`.
    """
    from optcli.recipe import schema

    click.echo(json.dumps(schema(), indent=2))
