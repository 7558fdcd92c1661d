"""A bundle of `optcli deploy --target ray` as the server of a load test: started here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from optcli.observer import Observer
from optcli.results.loadtest import ServedPriority
from optcli.serving import bundle as bundles
from optcli.serving.bundle import Bundle
from optcli.serving.deploy import plans
from optcli.serving.loadtest import endpoint, inputs
from optcli.serving.loadtest.endpoint import Endpoint
from optcli.serving.running import running

_PLAN = "plan.json"
_TOLERANCE = 1e-3


@contextmanager
def started(
    folder: Path, cpus: int | None, log: Path, scratch: Path, observer: Observer
) -> Iterator[tuple[Endpoint, Bundle]]:
    """Start the bundle's server, and stop all of it at the end; gives it and what the bundle says.

    Raises `UsageError` for a folder that is no bundle; raises as `running` does.
    """
    about = bundles.read(folder)
    plan = plans.read(folder / _PLAN) if (folder / _PLAN).is_file() else None
    priorities = tuple(_priorities(about))
    with running(folder, cpus=cpus, log=log, observer=observer) as server:
        found = endpoint.asked(server.url, about.model)
        samples, expected = folder / bundles.SAMPLES, folder / bundles.EXPECTED
        if not samples.is_file() and inputs.has_golden(folder):
            golden = inputs.of_golden(folder, scratch)
            samples, expected = golden.samples, golden.expected or expected
        yield (
            replace(
                found,
                served=found.served.model_copy(
                    update={
                        "folder": str(folder),
                        "batch": about.largest_batch if about.batched else 1,
                        "wait_ms": about.wait_ms,
                        "instances": priorities[-1].instances if priorities else about.instances,
                        "priorities": priorities,
                        "semantics": "sealed",
                        "own": True,
                        "cpus": _processors(server.pids),
                        "processors": os.cpu_count() or 0,
                    }
                ),
                samples=samples if samples.is_file() else None,
                expected=expected if expected.is_file() else None,
                tolerance=_TOLERANCE if about.tolerance is None else about.tolerance,
                plan=plan,
                concurrency=about.concurrency,
                pids=server.pids,
                wait_ms_at=_waits_of(about) if about.batched else None,
            ),
            about,
        )


def _priorities(about: Bundle) -> Iterator[ServedPriority]:
    """The priorities of a bundle, each with its own replicas."""
    for number, each in enumerate(about.priorities, start=1):
        yield ServedPriority(
            name=each.name,
            number=number,
            share=each.share,
            batch=each.largest_batch if about.batched else 1,
            wait_ms=each.wait_ms,
            instances=each.instances,
        )


def _waits_of(about: Bundle) -> Callable[[float, str | None], float]:
    """The wait for a batch at a rate of all requests, or of those of a priority."""
    by_name = {each.name: each for each in about.priorities}

    def wait_ms_at(rate_per_s: float, priority: str | None) -> float:
        return about.wait_ms_at(rate_per_s, None if priority is None else by_name[priority])

    return wait_ms_at


def _processors(pids: tuple[int, ...]) -> tuple[int, ...]:
    """The processors that the server's first process may run on; its children inherit them."""
    import psutil

    try:
        return tuple(psutil.Process(pids[0]).cpu_affinity())
    except (IndexError, AttributeError, psutil.Error):
        return ()
