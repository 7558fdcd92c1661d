"""`optcli roofline`: what this machine can do at most."""

from __future__ import annotations

from pathlib import Path

import click

from optcli.cli import options, show
from optcli.cli.progress import Progress
from optcli.store import Store


@click.command("roofline", epilog=options.examples("optcli roofline", "optcli roofline --remeasure"))
@options.store
@click.option("--remeasure", is_flag=True, help="Measure again what is in the store.")
@options.output
def command(store: Path | None, remeasure: bool, as_json: bool) -> None:
    """Measure this machine's peaks: arithmetic in every precision, and memory.

    optcli times matrix products and convolutions in every library that runs artifacts, with one core
    and with all that are usable. The fastest library counts. This takes about a minute; run it on a
    quiet machine. The store keeps the result. `optcli compare --roofline` then shows how near each
    artifact comes to the peak.
    """
    from optcli.measure.roofline import document
    from optcli.pipeline import roofline_share as roofline

    with Progress() as progress:
        peaks = roofline.measured(Store(Store.default_root(store)), progress, remeasure=remeasure)
    show(peaks, document(peaks), as_json=as_json)
