"""`optcli verify-accuracy`: what each artifact of a finished build costs in accuracy."""

from __future__ import annotations

import json
from pathlib import Path

import click

from optcli.cli import options
from optcli.errors import ExitCode, UsageError
from optcli.results import Report

_VERDICTS = ("accuracy", "outputs")


@click.command("verify-accuracy")
@click.argument("where", required=False, type=click.Path(path_type=Path), metavar="[RECIPE|REPORT]")
@options.artifacts
@options.as_json
@options.verbose
def command(where: Path | None, artifacts: Path | None, as_json: bool) -> int:
    """Show what each artifact of the last build costs in accuracy, with its verdicts.

    Reads the report of the last build, of a RECIPE's last one, or a REPORT file; nothing is
    evaluated again. The exit code is 1 where a verdict rejects, 5 where one cannot tell.
    """
    found, path = options.find_report(where, options.artifacts_root(artifacts))
    judged = {name: v for name, v in found.variants.items() if v.accuracy is not None}
    if not judged:
        raise UsageError(
            "the build judged no accuracy",
            place=str(path),
            hint="give the recipe data.evaluation and accuracy, then build again",
        )
    if as_json:
        record = {
            name: {
                "accuracy": variant.accuracy.model_dump(mode="json") if variant.accuracy else None,
                "verdicts": [
                    v.model_dump(mode="json") for v in variant.verdicts if v.name in _VERDICTS
                ],
            }
            for name, variant in judged.items()
        }
        click.echo(json.dumps({"baseline": found.baseline, "variants": record}, indent=2))
    else:
        from optcli import report

        click.echo(report.accuracy_text(found), nl=False)
    return _exit_code(found)


def _exit_code(found: Report) -> ExitCode:
    outcomes = [
        verdict.outcome
        for variant in found.variants.values()
        for verdict in variant.verdicts
        if verdict.blocking and verdict.name in _VERDICTS
    ]
    if "reject" in outcomes:
        return ExitCode.REJECTED
    return ExitCode.INCONCLUSIVE if "inconclusive" in outcomes else ExitCode.DONE
