"""The target of a load test, opened: a server at a URL, or a bundle that is started for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from optcli.observer import Observer
from optcli.serving.loadtest import bundles, calibrating, endpoint
from optcli.serving.loadtest.endpoint import Endpoint
from optcli.serving.loadtest.load_options import Options, with_plan


@contextmanager
def opened(
    target: str, options: Options, scratch: Path, observer: Observer
) -> Iterator[tuple[Endpoint, Options]]:
    """The server, ready, and the options with what a bundle brings along."""
    if endpoint.is_url(target):
        server = endpoint.asked(target, options.model)
        yield with_plan(server, options.plan) if options.plan else server, options
        return
    folder, log = Path(target), scratch / "server.log"
    with bundles.started(folder, options, log, scratch, observer) as server:
        yield server, replace(options, calibration=options.calibration or folder / calibrating.FILE)
