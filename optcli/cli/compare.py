"""`optcli compare`: the table of a finished build."""

from __future__ import annotations

from pathlib import Path

import click

from optcli.cli import options, show


@click.command("compare")
@click.argument("where", required=False, type=click.Path(path_type=Path), metavar="[RECIPE|REPORT]")
@options.artifacts
@options.as_json
@click.option("--markdown", is_flag=True, help="Print Markdown, for a pull request.")
@options.verbose
def command(where: Path | None, artifacts: Path | None, as_json: bool, markdown: bool) -> int:
    """Show the table of the last build, or of a RECIPE's last one, or of a REPORT file.

    Nothing is measured: the table says when the figures were taken. The exit code is the build's.
    """
    found, _ = options.find_report(where, options.artifacts_root(artifacts))
    if as_json:
        click.echo(found.to_json())
    elif markdown:
        from optcli import report

        click.echo(report.markdown(found))
    else:
        show(found)
    return found.exit_code
