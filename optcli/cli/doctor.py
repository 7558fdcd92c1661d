"""`optcli doctor`: what works here, what is missing and how to get it."""

from __future__ import annotations

from pathlib import Path

import click

from optcli.cli import options, show
from optcli.store import Store


@click.command("doctor", epilog=options.examples("optcli doctor", "optcli doctor --json"))
@options.store
@options.output
def command(store: Path | None, as_json: bool) -> int:
    """Say what works on this machine, what is missing and how to get it.

    optcli imports every runtime and runs a tiny model in it, which takes some seconds. The exit code
    is 3 if something is broken that optcli needs in any case.
    """
    from optcli.scaffold.doctor import document, examine

    examination = examine(Store.default_root(store))
    show(examination, document(examination), as_json=as_json)
    return int(examination.exit_code)
