"""`optcli baseline`: keep a build as what later ones are compared with."""

from __future__ import annotations

import json
from pathlib import Path

import click

from optcli.cli import options, reports, show
from optcli.errors import shown_path
from optcli.results.document import Document, Section, table_of_texts


@click.group("baseline")
def command() -> None:
    """Save builds as baselines of `optcli gate`, and list them."""


@command.command(
    "save",
    epilog=options.examples(
        "optcli baseline save released",
        "optcli baseline save released --report artifacts/flowers/report.json",
    ),
)
@click.argument("name")
@click.option(
    "--report",
    "where",
    type=options.PATH,
    metavar="RECIPE|REPORT",
    help="Which build; default: the last one.",
)
@click.option("--only", multiple=True, metavar="VARIANT", help="Save just these variants.")
@click.option(
    "--output",
    type=options.OUT_FILE,
    help="Write to this file instead of artifacts/baselines/NAME.optcli.tar.",
)
@options.store
@options.artifacts
@options.output
def save(
    name: str,
    where: Path | None,
    only: tuple[str, ...],
    output: Path | None,
    store: Path | None,
    artifacts: Path | None,
    as_json: bool,
) -> int:
    """Pack the last build into a file called NAME.

    The file holds the artifacts, their facts and the report. optcli verifies every file in it when it
    reads it.
    """
    from optcli.gate import baselines
    from optcli.gate import saving as builds
    from optcli.report import wording
    from optcli.store import Store

    last_build = reports.find(where, artifacts)
    path = output or baselines.place_of(name, last_build.root)
    opened_store = Store(Store.default_root(last_build.store(store)))
    pack = builds.save(path, last_build.report, last_build.path, opened_store, only)
    size = pack.stat().st_size
    if as_json:
        click.echo(json.dumps({"name": name, "path": str(pack), "size_bytes": size}, indent=2))
    else:
        click.echo(f"{shown_path(pack)}  ({wording.megabytes(size)})")
    return 0


@command.command("ls", epilog=options.examples("optcli baseline ls", "optcli baseline ls --json"))
@options.artifacts
@options.as_json
def ls(artifacts: Path | None, as_json: bool) -> None:
    """List the baselines that are here."""
    from optcli.gate import baselines
    from optcli.report.wording import megabytes

    root = reports.nearest(artifacts)
    paths = {name: baselines.place_of(name, root) for name in baselines.names(root)}
    rows = [
        {"name": name, "path": str(path), "size_bytes": path.stat().st_size}
        for name, path in paths.items()
    ]
    texts = [(name, megabytes(path.stat().st_size), shown_path(path)) for name, path in paths.items()]
    table = table_of_texts(("baseline", "size", "file"), texts, (0, 2))
    none = "no baseline here; `optcli baseline save NAME` keeps the last build"
    document = Document("optcli baseline ls", [Section("", [table])], answer="" if paths else none)
    show(rows, document, as_json=as_json)
