"""`optcli history`: how the gate's figures went over time. It informs and decides nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from optcli.cli import options, show

if TYPE_CHECKING:
    from optcli.results.gate import Trend


@click.command(
    "history",
    epilog=options.examples(
        "optcli history gate-history.jsonl",
        "optcli history gate-history.jsonl --variant onnx-int8 --html history.html",
    ),
)
@click.argument("path", type=options.FILE, metavar="FILE")
@click.option("--recipe", help="Only this recipe.")
@click.option("--variant", help="Only this variant.")
@click.option("--metric", help="Only this figure, such as p50 or size.")
@click.option("--html", type=options.OUT_FILE, help="Write the trends as an HTML page into this file.")
@options.output
def command(
    path: Path,
    recipe: str | None,
    variant: str | None,
    metric: str | None,
    html: Path | None,
    as_json: bool,
) -> None:
    """Show how the figures in FILE went over time, and where they changed.

    `optcli gate --history FILE` adds the figures of each run.
    """
    from optcli.gate import history
    from optcli.report import html as pages
    from optcli.report.trends import document

    entries = [
        each
        for each in history.load(path)
        if recipe in (None, each.recipe)
        and variant in (None, each.variant)
        and metric in (None, each.metric)
    ]
    trends = history.trends(entries)
    if html is not None:
        options.write(html, pages.html(document(trends)))
    show([_record(each) for each in trends], document(trends), as_json=as_json)


def _record(trend: Trend) -> dict[str, Any]:
    series = ("recipe", "variant", "metric", "batch_size", "unit", "machine")
    figures = ("enough", "change", "latest", "earliest")
    return {
        **{name: getattr(trend, name) for name in series},
        "entries": [entry.model_dump(mode="json") for entry in trend.entries],
        "steps": [{"index": step, "growth": trend.growth(step)} for step in trend.steps],
        **{name: getattr(trend, name) for name in figures},
    }
