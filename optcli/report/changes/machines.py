"""Whether two reports were measured on machines alike, and what else differs between them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from optcli.results import Report, VariantReport

# Of what `environment.machine` says, that which a restart does not change.
_HARDWARE = {
    "processor": "the processor's model",
    "online": "the number of processors",
    "memory_gib": "the memory in GiB",
    "hypervisor": "the hypervisor",
}
# Where the report has it, and what a person calls it. What one side does not know is no difference.
_MACHINE = (
    (("environment", "cpu", "model"), "the CPU"),
    (("environment", "cpu", "machine"), "the architecture"),
    (("environment", "cores"), "the number of usable cores"),
    (("environment", "gpu"), "the GPU"),
    *((("environment", "machine", name), said) for name, said in _HARDWARE.items()),
    (("protocol", "conditions", "before", "cpu_quota"), "the CPU quota"),
    (("protocol", "conditions", "before", "governor"), "the governor"),
    (("protocol", "conditions", "before", "boost"), "boost"),
    (("protocol", "conditions", "before", "hyper_threading"), "hyper-threading"),
    (("protocol", "region"), "the timed region"),
)
_CHANGED = (
    (("environment", "system"), "system"),
    (("protocol", "mode"), "latency mode"),
    (("protocol", "inputs"), "inputs"),
)


def machine(report: Report) -> str:
    """The machine in a few words."""
    cpu = _at(report, ("environment", "cpu", "model")) or "unknown CPU"
    cores = _at(report, ("environment", "cores"))
    return f"{cpu}, {cores} cores" if cores else str(cpu)


def differences(before: Report, after: Report) -> list[str]:
    """What makes the latency of the two not comparable; empty where nothing does."""
    reasons = [f"{name} differs ({how})" for name, how in _differing(before, after, _MACHINE)]
    flags = [_at(report, ("environment", "cpu", "flags")) for report in (before, after)]
    if flags[0] and flags[1] and set(flags[0]) != set(flags[1]):
        apart = sorted(set(flags[0]) ^ set(flags[1]))
        reasons.append(f"the CPU's instructions differ ({', '.join(apart)})")
    gpus = [_gpus(report) for report in (before, after)]
    if gpus[0] and gpus[1] and gpus[0] != gpus[1]:
        reasons.append(f"the GPU differs ({gpus[0]} and {gpus[1]})")
    return reasons


def thread_difference(name: str, before: VariantReport, after: VariantReport) -> str | None:
    """Threads of one variant that differ although nobody changed its settings."""
    counts = [{row.threads for row in each.latency} for each in (before, after)]
    requested = [_settings(each).get("threads") for each in (before, after)]
    if not counts[0] or not counts[1] or counts[0] == counts[1] or requested[0] != requested[1]:
        return None
    shown = [" or ".join(map(str, sorted(each))) for each in counts]
    return f"the threads of {name} differ ({shown[0]} and {shown[1]})"


def changed(before: Report, after: Report) -> list[str]:
    """Versions and settings that differ: what may have made the change."""
    changes = [f"{name} {how}" for name, how in _differing(before, after, _CHANGED, " → ")]
    return changes + versions(before, after)


def versions(before: Report, after: Report) -> list[str]:
    """Python and libraries that both know and whose versions differ."""
    versions_of = [
        {"Python": each.environment.get("python"), **(each.environment.get("versions") or {})}
        for each in (before, after)
    ]
    names = (name for name in versions_of[0] if versions_of[0][name] and versions_of[1].get(name))
    return [
        f"{name} {versions_of[0][name]} → {versions_of[1][name]}"
        for name in names
        if versions_of[0][name] != versions_of[1][name]
    ]


def settings(before: VariantReport, after: VariantReport) -> list[str]:
    """What changed about how a variant runs: its runner, settings and what they effectively are."""
    first, second = (_settings(each) for each in (before, after))
    return [
        f"{name} {first.get(name, 'default')} → {second.get(name, 'default')}"
        for name in dict.fromkeys([*first, *second])
        if first.get(name) != second.get(name)
    ]


def requested(variant: VariantReport) -> tuple[Any, Any]:
    """The runner and the settings that it was asked for: with the artifact, what was measured."""
    runner = variant.runner or {}
    return runner.get("name"), runner.get("requested")


def _settings(variant: VariantReport) -> dict[str, str]:
    runner = variant.runner or {}
    requested = runner.get("requested") or {}
    values = {"runner": runner.get("name"), "precision": runner.get("precision"), **requested}
    return {name: str(value) for name, value in values.items() if value is not None}


def _differing(
    before: Report,
    after: Report,
    table: tuple[tuple[tuple[str, ...], str], ...],
    between: str = " and ",
) -> Iterator[tuple[str, str]]:
    for path, name in table:
        first, second = _at(before, path), _at(after, path)
        if first is not None and second is not None and first != second:
            yield name, f"{_text(first)}{between}{_text(second)}"


def _text(value: Any) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _gpus(report: Report) -> str:
    gpus = _at(report, ("protocol", "conditions", "before", "gpus")) or []
    names = (each.get("name") for each in gpus if isinstance(each, Mapping))
    return ", ".join(str(name) for name in names if name)


def _at(report: Report, path: tuple[str, ...]) -> Any:
    """The value at a path of keys; None where there is none."""
    value: Any = getattr(report, path[0])
    for key in path[1:]:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
