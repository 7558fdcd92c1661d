"""Against figures that were recorded earlier: for people who cannot run the baseline, and said so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optcli import environment, latency
from optcli.errors import RunnerError
from optcli.gate import comparisons
from optcli.gate.gating import Gating
from optcli.gate.latency import STEP, candidate, service_level, threads_of
from optcli.gate.side import Side
from optcli.pipeline.places import LatencyOrder, Place
from optcli.results import Flag, Latency, Report, flags
from optcli.results.gate import Comparison
from optcli.settings import GateSettings, LatencySettings
from optcli.settings.devices import HERE

# Of what an environment says of a machine; another kernel or library is the runtime's matter.
_MACHINE = ("cpu", "cores", "gpu", "gpu_models")


def compare(gating: Gating, side: Side, place: Place) -> tuple[list[Comparison], list[Flag]]:
    """The candidate measured at a place now, beside what the baseline's report says of it."""
    report = _of_device(gating.before.report, place)
    if report is None and gating.before.report is not None:
        why = f"the baseline has no recorded latency on {place.name or HERE}"
        return [comparisons.not_compared("p50", why)], []
    then = report.variants.get(side.name) if report is not None else None
    if report is None or then is None or not then.latency:
        why = "the baseline has no recorded latency of this variant"
        return [comparisons.not_compared("p50", why)], []
    around = gating.before.environment if report.device is None else report.environment
    here = {**place.environment(side.packages), "machine": place.machine()}
    elsewhere = _other_machine(around, here)
    if elsewhere is not None:
        return [comparisons.not_compared("p50", elsewhere)], []
    rows = alone(gating, side, place)
    recorded = {row.batch_size: row for row in then.on_host}
    compared = _compared(gating.settings, recorded, {row.batch_size: row for row in rows})
    promised = service_level(rows, gating.slo, side.now.artifact.size_bytes)
    return [*compared, *promised], [flags.recorded_figures()]


def _of_device(report: Report | None, place: Place) -> Report | None:
    """What a report says of a device; of this machine what it says under whatever name."""
    if report is None or (report.device is None and place.is_here):
        return report
    if place.is_here:
        mine = place.machine()["identity"]
        return next((each for each in report.by_device if _identity(each) == mine), None)
    return next((each for each in report.by_device if each.device == place.name), None)


def _identity(report: Report) -> object:
    machine = report.environment.get("machine")
    return machine.get("identity") if isinstance(machine, Mapping) else None


def alone(gating: Gating, side: Side, place: Place) -> list[Latency]:
    """The candidate measured by itself, now. Raises `RunnerError` where it cannot be."""
    settings = LatencySettings(
        mode="table",
        batch_sizes=gating.settings.batch_sizes,
        threads=threads_of(gating.settings, place),
    )
    recipe = gating.made.plan.recipe
    order = LatencyOrder(
        candidates=(candidate(side.name, side.now, gating.settings, place),),
        baseline=side.name,
        inputs=recipe.inputs,
        feeds=gating.made.feeds,
        settings=settings,
        seed=recipe.seed,
    )
    measured = place.measure(STEP, order, gating.logs, gating.observer)
    for reason in measured.failures.values():
        raise RunnerError(reason, place=f"{side.name} › gate")
    return [row for row in latency.to_results(measured)[side.name] if row.region == "host"]


def _compared(
    settings: GateSettings, recorded: Mapping[int, Latency], rows: Mapping[int, Latency]
) -> list[Comparison]:
    """Every figure that has a bar; what is not recorded, or not fit, tells nothing."""
    compared = []
    for size, row in rows.items():
        old = recorded.get(size)
        if settings.p50 is not None:
            why = _why_not(old, row)
            if why is not None or old is None:
                compared.append(comparisons.not_compared("p50", why or "", size))
            else:
                limit = settings.p50.limit
                compared.append(comparisons.recorded(size, old.p50_ms, row.p50_ms, limit))
        if settings.p95 is not None:
            why = "only medians are compared with recorded figures"
            blocks = settings.p95.undecided == "blocks"
            compared.append(comparisons.not_compared("p95", why, size, blocks=blocks))
    return compared or [comparisons.not_compared("p50", "nothing was measured")]


def _why_not(old: Latency | None, row: Latency) -> str | None:
    """Why a recorded row says nothing of one measured now; None where it does."""
    if old is None:
        return "nothing was recorded at this batch size"
    if old.threads != row.threads:
        return f"recorded with {old.threads} threads, measured with {row.threads}"
    if not (old.fit and row.fit):
        return f"the machine was not fit to tell when it was {'measured' if old.fit else 'recorded'}"
    return None


def _other_machine(then: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """What tells that the figures were recorded on another machine; None: nothing does."""
    for name in _MACHINE:
        if then.get(name) != now.get(name):
            told = [each.get(name) for each in (then, now)]
            was, here = (e.get("model", "unknown") if isinstance(e, Mapping) else e for e in told)
            return f"recorded on another machine: {name} {was}, here {here}"
    then_host, now_host = then.get("machine", {}), now.get("machine", {})
    if not isinstance(then_host, Mapping):  # no build writes that
        return "recorded on an unknown machine: its description cannot be read"
    for name in environment.HARDWARE:
        if name in then_host and then_host[name] != now_host.get(name):
            return f"recorded on another machine: its {name} differs"
    return None
