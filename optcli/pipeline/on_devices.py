"""What a build measures on each device of its recipe."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli.errors import OptcliError, RunnerError
from optcli.observer import Observer
from optcli.pipeline import latency, shapes
from optcli.pipeline.latency import LatencyResults
from optcli.pipeline.making import Phases
from optcli.pipeline.places import Here, MeasuringContext
from optcli.pipeline.plan import DEVICES_FOLDER, BuildPlan, Device, devices_of
from optcli.results import Sweep
from optcli.store import Store

if TYPE_CHECKING:
    from optcli.pipeline.remote_devices.devices import RemoteDevice

_SAMPLES, _LOGS = "samples.npz", "logs"


@dataclass(frozen=True)
class Reached:
    """The devices of a recipe, the first one first; `remote` has the other machines by name."""

    devices: tuple[Device, ...]
    remote: Mapping[str, RemoteDevice]

    def remote_device(self, device: Device) -> RemoteDevice | None:
        """The device; None where it is this machine."""
        return None if device.name is None else self.remote.get(device.name)


@dataclass(frozen=True)
class OnDevice:
    """What one device gave; `plan` has the variants that were to be measured there.

    `failures` holds why one could not be. `environment` is that of the device, None: of this machine.
    """

    plan: BuildPlan
    measured: LatencyResults
    swept: dict[str, Sweep]
    failures: dict[str, OptcliError]
    samples: Path
    logs: Path
    environment: dict[str, Any] | None = field(default=None, repr=False)


@contextmanager
def reached(ray: str | None, plan: BuildPlan, store: Store, observer: Observer) -> Iterator[Reached]:
    """The devices of a plan, connected; they are looked for before anything is made.

    Raises `UsageError` where a device needs `--ray`, `MissingError` where one cannot be had.
    """
    devices = devices_of(plan.recipe, [each.name for each in plan.variants], plan.baseline)
    with joined(ray, plan, devices, store, observer) as remote:
        yield Reached(devices, remote)


@contextmanager
def joined(
    ray: str | None, plan: BuildPlan, devices: Sequence[Device], store: Store, observer: Observer
) -> Iterator[Mapping[str, RemoteDevice]]:
    """Those of the devices that are other machines, by name; Ray is not imported where none needs it.

    Raises as `reached` does.
    """
    with ExitStack() as stack:
        remote: dict[str, RemoteDevice] = {}
        if any(device.ray is not None for device in devices):
            from optcli.pipeline.on_ray import devices as on_cluster

            remote |= stack.enter_context(on_cluster.opened(ray, plan, devices, store, observer))
        if any(device.ssh for device in devices):
            from optcli.pipeline.on_ssh import devices as on_hosts

            remote |= stack.enter_context(on_hosts.opened(plan, devices, store, observer))
        yield remote


def clear(folder: Path) -> None:
    """Remove what an earlier build left of its devices below the folder of its results, and no more."""
    below = folder / DEVICES_FOLDER
    for device in below.iterdir() if below.is_dir() and not below.is_symlink() else ():
        if device.is_dir() and not device.is_symlink():
            with suppress(OSError):  # what somebody else keeps there stays
                (device / _SAMPLES).unlink(missing_ok=True)
                shutil.rmtree(device / _LOGS, ignore_errors=True)
                device.rmdir()
    with suppress(OSError):
        below.rmdir()


def measured(
    reached_devices: Reached,
    initial_plan: BuildPlan,
    plan: BuildPlan,
    folder: Path,
    context: MeasuringContext,
    phases: Phases,
) -> list[OnDevice]:
    """What each device gives. A device that is lost costs its own figures.

    `initial_plan` is the plan before the shapes of runners were chosen, as in `plan`, for this machine:
    each device has its own. Samples and logs of the first device lie in `folder`, those of the others
    below it.
    """
    measured_on = []
    for number, device in enumerate(reached_devices.devices):
        below = folder if number == 0 else folder / DEVICES_FOLDER / str(device.name)
        below.mkdir(parents=True, exist_ok=True)
        remote = reached_devices.remote_device(device)
        own_plan = _plan_on(device, remote, initial_plan if remote else plan)
        own_context = replace(context, place=remote or Here(device.name))
        on_device = _measured(own_plan, remote, below, own_context, phases)
        if remote is not None:
            about = remote.description(initial_plan.packages())
            on_device = replace(on_device, environment=about)
        measured_on.append(on_device)
    return measured_on


def _measured(
    plan: BuildPlan,
    remote: RemoteDevice | None,
    folder: Path,
    context: MeasuringContext,
    phases: Phases,
) -> OnDevice:
    samples, logs = folder / _SAMPLES, folder / _LOGS
    try:
        if remote is not None:
            with phases.take("shapes"):
                plan = shapes.settled(plan, context)
        with phases.take("latency"):
            results = latency.measure(plan, context, samples, logs)
        with phases.take("sweep"):
            swept = latency.sweep_all(plan, context, logs)
    except OptcliError as error:
        if remote is None:
            raise
        context.observer.failed(plan.on_device(latency.STEP), error.message)
        samples.unlink(missing_ok=True)
        results, swept = LatencyResults(), {}
        failures: dict[str, OptcliError] = {
            each.name: error for each in plan.variants if each.name in context.artifacts
        }
    else:
        failures = {
            name: RunnerError(reason, place=f"{name} › {plan.on_device(latency.STEP)}")
            for name, reason in results.failures.items()
        }
    finally:
        if remote is not None:
            remote.release()
    return OnDevice(plan, _named(results, plan.device), swept, failures, samples, logs)


def _plan_on(device: Device, remote: RemoteDevice | None, plan: BuildPlan) -> BuildPlan:
    """The plan of what is measured on a device, with what keeps variants from running there."""
    variants = tuple(each for each in plan.variants if each.name in device.variants)
    if remote is None:
        return replace(plan, variants=variants, device=device.name)
    return replace(
        plan,
        variants=tuple(replace(each, unmeasurable=remote.lacking(each.name)) for each in variants),
        threads=plan.recipe.latency.threads or int(remote.environment(())["cores"]),
        device=device.name,
    )


def _named(results: LatencyResults, device: str | None) -> LatencyResults:
    """The results, each row with the name of its device."""
    rows = {
        name: tuple(row.model_copy(update={"device": device}) for row in each)
        for name, each in results.rows.items()
    }
    return replace(results, rows=rows)
