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
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="The address to listen on; at another address, other machines can reach the server.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    default=8000,
    show_default=True,
    help="The port to listen on.",
)
@click.option(
    "--cpus",
    type=click.IntRange(1),
    help="Cores that Ray shares out among the replicas.  [default: as many as they ask for]",
)
@click.option(
    "--log",
    type=options.PATH,
    metavar="FILE",
    help="Write the server's log to this file.",
)
@click.option(
    "--ready-timeout",
    type=click.FloatRange(1),
    default=180.0,
    show_default=True,
    help="Seconds within which the server must be ready.",
)
@options.trust
@options.store
@options.output
def command(
    folder: Path,
    host: str,
    port: int,
    cpus: int | None,
    log: Path | None,
    ready_timeout: float,
    trust: bool,
    store: Path | None,
    as_json: bool,
) -> None:
    """Start the server of a bundle that `optcli deploy --target ray` wrote in FOLDER.

    optcli says when the model is warmed up and the server answers. Ctrl-C stops the server after it has
    answered the requests that it has taken in. The server speaks the Open Inference Protocol v2. It has
    no authentication. It listens on the loopback address unless --host names another one. A bundle is
    a program: one that your store did not write needs --trust. It needs the extra `serve`.
    """
    import json
    from contextlib import ExitStack

    from optcli.serving import bundle
    from optcli.serving.running import running, wait
    from optcli.store import Store

    bundle.require_own(folder, Store(Store.default_root(store)), trust=trust)
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
            click.echo("stopping after the accepted requests are answered", err=True)
            return
        last_lines = "; ".join(server.last_lines[-3:])
        raise RunnerError(
            f"the server ended by itself{f': {last_lines}' if last_lines else ''}",
            place=str(folder),
            hint="--log FILE keeps the server's log",
        )
