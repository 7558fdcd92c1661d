"""`optcli compare`: the table of a finished build, or what changed between several."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from optcli.cli import options, reports, show
from optcli.errors import NotComparableError, UsageError, shown_path

if TYPE_CHECKING:
    from optcli.report.changes import ReportComparison
    from optcli.results import Report
    from optcli.results.document import Document
    from optcli.store import Store

_FORMATS = ("terminal", "markdown", "json", "csv", "html")
_SUFFIXES = {".md": "markdown", ".json": "json", ".csv": "csv", ".html": "html", ".htm": "html"}


@click.command(
    "compare",
    epilog=options.examples(
        "optcli compare recipe.yaml",
        "optcli compare before.json after.json --format markdown --output changes.md",
    ),
)
@click.argument("where", nargs=-1, type=options.PATH, metavar="[RECIPE|REPORT]...")
@options.artifacts
@click.option(
    "--format", "form", type=click.Choice(_FORMATS), help="Default: terminal, or what --output ends in."
)
@click.option("--output", "-o", type=options.OUT_FILE, help="Write to a file instead.")
@options.as_json
@click.option("--markdown", is_flag=True, help="The same as --format markdown, for a pull request.")
@click.option("--force", is_flag=True, help="Compare although the machines differ.")
@click.option("--roofline", is_flag=True, help="Add operations and the share of this machine's peak.")
@options.store
@options.verbose
def command(
    where: tuple[Path, ...],
    artifacts: Path | None,
    form: str | None,
    output: Path | None,
    as_json: bool,
    markdown: bool,
    force: bool,
    roofline: bool,
    store: Path | None,
) -> int:
    """Show the table of the last build, or what changed between several reports.

    Without an argument it shows the newest report here. An argument is a RECIPE, a recipe's name, a
    report file or its folder. The exit code for one report is that of its build. With several reports,
    compare shows what changed from the first one: the exit code is 0, or 5 if the machines differ, so
    that their times cannot be compared. It measures nothing.
    """
    chosen_form = _form(form, output, as_json, markdown)
    try:
        return _compare(where, artifacts, chosen_form, output, force, roofline, store)
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        # Anybody can have edited a report, and some of its parts take any JSON.
        logging.getLogger(__name__).info("the report cannot be shown", exc_info=error)
        raise UsageError(
            f"a report holds values that no build writes ({type(error).__name__})",
            place=", ".join(map(str, where)) or "the newest report",
            hint="build again; where a build wrote it, please report it with what -v shows",
        ) from error


def _compare(
    where: Sequence[Path],
    artifacts: Path | None,
    form: str,
    output: Path | None,
    force: bool,
    roofline: bool,
    store: Path | None,
) -> int:
    from optcli.report import build, changes

    if len(where) < 2:
        place = reports.find(where[0] if where else None, artifacts)
        report, path = place.report, place.path
        report = _near_the_limit(report, path.parent, place.opened(store)) if roofline else report
        if form == "terminal" and output is None:
            show(report, build.document(report))
        else:
            _give(_one(report, path, form), output)
        return report.exit_code
    if roofline:
        raise UsageError(
            f"found {len(where)} reports, --roofline wants one",
            place="--roofline",
            hint="name one report: the share of the peak belongs to one machine",
        )
    named = [(str(each), reports.find(each, artifacts).report) for each in where]
    comparisons = _compared(named, force)
    if form == "terminal" and output is None:
        show(comparisons, changes.document(comparisons))
    else:
        _give(_several(comparisons, form), output)
    return 0


def _near_the_limit(report: Report, folder: Path, store: Store) -> Report:
    from optcli.pipeline import roofline_share as roofline

    counted = roofline.near(report, folder, store)
    store.digests.save()
    return counted


def _form(form: str | None, output: Path | None, as_json: bool, markdown: bool) -> str:
    """The one form that is asked for in one of several ways."""
    named = {form, "json" if as_json else None, "markdown" if markdown else None} - {None}
    if len(named) > 1:
        raise UsageError(
            f"found {' and '.join(sorted(filter(None, named)))}, wanted one form",
            place="--format",
            hint="leave out --json and --markdown where --format is given",
        )
    if named:
        return str(named.pop())
    return _SUFFIXES.get(output.suffix.lower(), "terminal") if output else "terminal"


def _one(report: Report, path: Path, form: str) -> str:
    from optcli.pipeline.report_files import document_of
    from optcli.report.csv_text import csv_text

    if form == "json":
        return report.to_json() + "\n"
    return csv_text(report) if form == "csv" else _written(document_of(path.parent, report), form)


def _compared(named: Sequence[tuple[str, Report]], force: bool) -> list[ReportComparison]:
    from optcli.report import changes

    comparisons = [each for other in named[1:] for each in changes.compare_devices(named[0], other)]
    apart = next((each for each in comparisons if not each.comparable), None)
    if apart is not None and not force:
        raise NotComparableError(
            f"not comparable because {'; '.join(apart.reasons)}",
            place=f"{apart.before.label} and {apart.after.label}",
            hint="measure both on one machine, or use --force to see the figures side by side",
        )
    return comparisons


def _several(comparisons: Sequence[ReportComparison], form: str) -> str:
    from optcli.report import changes
    from optcli.report.csv_text import csv_of_changes

    if form == "json":
        records = [each.model_dump(mode="json", by_alias=True) for each in comparisons]
        return json.dumps(records, indent=2) + "\n"
    if form == "csv":
        return csv_of_changes(comparisons)
    return _written(changes.document(comparisons), form)


def _written(document: Document, form: str) -> str:
    from optcli.report import html, markdown_text, terminal

    forms = {"markdown": markdown_text.markdown, "html": html.html}
    return forms.get(form, terminal.text)(document)


def _give(text: str, output: Path | None) -> None:
    if output is None:
        click.echo(text, nl=False)
        return
    options.write(output, text)
    click.echo(f"wrote {shown_path(output)}", err=True)
