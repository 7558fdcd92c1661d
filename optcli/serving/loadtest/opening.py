"""The target of a load test, opened: a server at a URL, or a bundle that is started for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from optcli.errors import UsageError
from optcli.observer import Observer
from optcli.serving.loadtest import bundles, calibrating, endpoint
from optcli.serving.loadtest.asked import Options, with_plan
from optcli.serving.loadtest.endpoint import Endpoint


@contextmanager
def opened(
    target: str, options: Options, scratch: Path, observer: Observer
) -> Iterator[tuple[Endpoint, Options]]:
    """The server, ready, and the options with what a bundle brings along."""
    if endpoint.is_url(target):
        found = endpoint.asked(target, options.model)
        yield (with_plan(found, options.plan) if options.plan else found), options
        return
    folder, log = Path(target), scratch / "server.log"
    with bundles.started(folder, options.cpus, options.model_cpus, log, scratch, observer) as (
        found,
        about,
    ):
        if options.encoding == "image" and not about.images:
            raise UsageError(
                "the bundle takes no images", place="--encoding image", hint="deploy it with --images"
            )
        place = options.calibration or folder / calibrating.FILE
        yield found, replace(options, calibration=place)
