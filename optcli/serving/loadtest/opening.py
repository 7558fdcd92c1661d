"""The server of a load test: one at a URL, or a bundle of `deploy --target ray`, started here."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from optcli.errors import UsageError
from optcli.observer import Observer
from optcli.serving import bundle as bundles
from optcli.serving.bundle import as_configured
from optcli.serving.deploy import extras, interface, plans
from optcli.serving.loadtest import calibrating, endpoint, load_options
from optcli.serving.loadtest.endpoint import Endpoint
from optcli.serving.loadtest.load_options import Options, with_plan
from optcli.serving.running import running

_PLAN = "plan.json"
_TOLERANCE = 1e-3
# What Ray calls the processes that hold a replica, and how the name of the model's deployment begins.
_REPLICA, _MODEL = "ServeReplica", ":Model"


@contextmanager
def started_bundle(
    folder: Path, options: Options, log: Path, scratch: Path, observer: Observer
) -> Iterator[Endpoint]:
    """Start the bundle's server, and stop all of it at the end.

    The replicas of the model get `model_cpus` for themselves, and the rest of the server the others.
    A cache of answers is switched off unless asked for: the client sends the same samples time after
    time. Raises `UsageError` for a folder that is no bundle, and for one with priorities; raises as
    `running` does.
    """
    deployed = bundles.read(folder)
    if deployed.priorities:
        routes = " and ".join(each.route or "/" for each in deployed.priorities)
        raise UsageError(
            f"the bundle has an application for each priority, at {routes}, wanted one",
            place=str(folder),
            hint="start it with `optcli serve`, and load each by its URL with --plan"
            f" {folder / _PLAN}, such as http://127.0.0.1:8000{deployed.priorities[0].route}",
        )
    plan = plans.read(folder / _PLAN) if (folder / _PLAN).is_file() else None
    model_cpus = options.model_cpus
    variables = {}
    if deployed.cache is not None and not options.with_cache:
        variables[extras.CACHE_VARIABLE] = extras.CACHE_OFF
    child = running(folder, cpus=options.cpus, log=log, variables=variables, observer=observer)
    with child as server:
        about = as_configured(folder, deployed)
        described = endpoint.asked(server.url, about.model)
        if model_cpus:
            _pin(server.pids, model_cpus)
        samples, expected = folder / bundles.SAMPLES, folder / bundles.EXPECTED
        if not samples.is_file() and load_options.has_golden(folder):
            golden = load_options.golden_samples(folder, scratch)
            samples, expected = golden.samples, golden.expected or expected
        yield replace(
            described,
            served=described.served.model_copy(
                update={
                    "folder": str(folder),
                    "batch": about.largest_batch if about.batched else 1,
                    "wait_ms": about.wait_ms,
                    "instances": about.instances,
                    "semantics": "sealed",
                    "own": True,
                    "cpus": _processors(server.pids),
                    "model_cpus": model_cpus,
                    "processors": os.cpu_count() or 0,
                }
            ),
            samples=samples if samples.is_file() else None,
            expected=expected if expected.is_file() else None,
            golden=interface.golden_image_in(folder) if about.images else None,
            tolerance=_TOLERANCE if about.tolerance is None else about.tolerance,
            plan=plan,
            concurrency=about.concurrency,
            threads=about.threads,
            pids=server.pids,
        )


def _pin(pids: tuple[int, ...], model_cpus: tuple[int, ...]) -> None:
    """Run the replicas of the model on their processors, and all else on the others."""
    import psutil

    others = _others(model_cpus)
    for pid in pids:
        with contextlib.suppress(OSError, psutil.Error):
            title = " ".join(psutil.Process(pid).cmdline())
            _pin_threads(pid, model_cpus if _REPLICA in title and _MODEL in title else others)


def _others(model_cpus: tuple[int, ...]) -> set[int]:
    return os.sched_getaffinity(0) - set(model_cpus)


def _pin_threads(pid: int, cpus: Collection[int]) -> None:
    """Each thread has processors of its own; those that start later have their starter's."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), cpus)


def _processors(pids: tuple[int, ...]) -> tuple[int, ...]:
    """The processors that the server's first process may run on; its children inherit them."""
    import psutil

    try:
        return tuple(psutil.Process(pids[0]).cpu_affinity())
    except (IndexError, AttributeError, psutil.Error):
        return ()


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
    with started_bundle(folder, options, log, scratch, observer) as server:
        yield server, replace(options, calibration=options.calibration or folder / calibrating.FILE)
