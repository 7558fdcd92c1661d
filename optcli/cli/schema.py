"""`optcli schema`: the JSON Schema of recipes and plans, for editors to complete and check with."""

from __future__ import annotations

import json

import click

from optcli.cli import options


@click.command("schema", epilog=options.examples("optcli schema", "optcli schema > recipe.schema.json"))
@click.argument(
    "what", type=click.Choice(["recipe", "plan-file", "plan"]), default="recipe", metavar="[WHAT]"
)
def command(what: str) -> None:
    """Print the JSON Schema of recipes, or of WHAT: recipe, plan-file, or plan (`optcli plan --json`).

    Save it beside your recipes as recipe.schema.json, and begin them with
    `# yaml-language-server: $schema=recipe.schema.json`, as those of `optcli init` do.
    """
    if what == "recipe":
        from optcli.recipe import schema

        click.echo(json.dumps(schema(), indent=2))
        return
    from optcli.serving import planning

    written = planning.file_schema() if what == "plan-file" else planning.schema()
    click.echo(json.dumps(written, indent=2))
