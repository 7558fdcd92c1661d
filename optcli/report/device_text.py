"""What a report says of the device that it was measured on, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from optcli import environment
from optcli.results import Report


def device_lines(report: Report) -> Iterator[str]:
    """The device's processor, GPUs, state and versions; nothing where the recipe asks for no device."""
    if report.device is None:
        return
    around = report.environment
    parts = [_processor(around), *_gpus(around), *_state(report), *_versions(around)]
    yield f"{report.device}: {'; '.join(parts)}."
    yield from _judged_elsewhere(report)


def _processor(around: Mapping[str, Any]) -> str:
    cores = around.get("cores", "?")
    model = _of(around, "cpu").get("model", "unknown processor")
    return f"{model}, {cores} core{'s' if cores != 1 else ''}, {around.get('system', 'unknown system')}"


def _gpus(around: Mapping[str, Any]) -> Iterator[str]:
    models = around.get("gpu_models")
    for model in models if isinstance(models, list) else ():
        if isinstance(model, Mapping):
            yield f"{model.get('name', 'GPU')}, driver {model.get('driver_version', 'unknown')}"


def _state(report: Report) -> Iterator[str]:
    """Governor and temperature, as far as the device told them."""
    before, after = (_of(_of(report.protocol, "conditions"), when) for when in ("before", "after"))
    if before.get("governor"):
        yield f"governor {before['governor']}"
    temperatures = [each.get("temperature_c") for each in (before, after)]
    known = [f"{each:.0f}" for each in temperatures if isinstance(each, int | float)]
    if known:
        yield f"{' to '.join(dict.fromkeys(known))} °C"
    gpus = after.get("gpus")
    for gpu in gpus if isinstance(gpus, list) else ():
        if isinstance(gpu, Mapping) and gpu.get("temperature.gpu"):
            yield f"GPU {gpu['temperature.gpu']} °C"


def _versions(around: Mapping[str, Any]) -> Iterator[str]:
    versions = {"python": around.get("python"), **_of(around, "versions")}
    known = [f"{name} {version}" for name, version in versions.items() if version]
    if known:
        yield ", ".join(known)


def _judged_elsewhere(report: Report) -> Iterator[str]:
    """Integer sums differ between processors: what was accurate on one may not be on another."""
    flags = _of(report.environment, "cpu").get("flags")
    judged = {each.accuracy.isa for each in report.variants.values() if each.accuracy is not None}
    if not isinstance(flags, list) or not flags:
        return
    here = environment.isa_of(flags, str(_of(report.environment, "cpu").get("machine", "")))
    for isa in sorted(each for each in judged if each is not None and each != here):
        yield (
            f"Accuracy was judged on a processor with {isa}; {report.device} has {here}, where 8-bit"
            " models may be less accurate."
        )


def _of(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A mapping within another; reports from elsewhere may hold anything."""
    inner = values.get(name)
    return inner if isinstance(inner, Mapping) else {}
