"""`optcli serve`: start a bundle's server here."""

from __future__ import annotations

from pathlib import Path

import click

from optcli.cli import options
from optcli.cli.progress import Progress
from optcli.errors import RunnerError


@click.command(
    "serve",
    epilog=options.examples("optcli serve deployed", "optcli serve deployed --port 9000 --json"),
)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--host", default="127.0.0.1", show_default=True, help="The address to listen on; others reach it."
)
@click.option(
    "--port", type=click.IntRange(1, 65535), default=8000, show_default=True, help="Its port."
)
@click.option(
    "--cpus",
    type=click.IntRange(1),
    help="Cores that Ray shares out among replicas.  [default: what they take]",
)
@click.option(
    "--log",
    type=options.PATH,
    metavar="FILE",
    help="Keep what the server says.",
)
@click.option(
    "--ready-timeout",
    type=click.FloatRange(1),
    default=120.0,
    show_default=True,
    help="Seconds until it must be ready.",
)
@options.as_json
@options.verbose
def command(
    folder: Path,
    host: str,
    port: int,
    cpus: int | None,
    log: Path | None,
    ready_timeout: float,
    as_json: bool,
) -> None:
    """Start the server of a bundle that `optcli deploy --target ray` wrote in FOLDER.

    It says when the model is warmed up and requests are answered. Ctrl-C stops all of it: what it has
    taken in is answered first. The server speaks the Open Inference Protocol v2 and listens on the
    loopback address, as it has no authentication. Needs `pip install 'optcli[serve]'`.
    """
    import json
    from contextlib import ExitStack

    from optcli.serving.running import running, wait

    with ExitStack() as stack:
        with Progress() as progress:
            started = running(
                folder, host=host, port=port, cpus=cpus, log=log, ready_s=ready_timeout,
                observer=progress,
            )  # fmt: skip
            server = stack.enter_context(started)
        if as_json:
            click.echo(json.dumps({"schema": 1, "url": server.url, "pids": server.pids}))
        else:
            click.echo(f"ready at {server.url}; {folder / 'README.md'} has a request. Ctrl-C stops it.")
        try:
            wait(server)
        except KeyboardInterrupt:
            click.echo("stopping, when what it has taken in is answered", err=True)
            return
        raise RunnerError(
            "the server ended by itself", place=str(folder), hint="--log FILE keeps what it says"
        )
