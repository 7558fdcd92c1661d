"""Clocks, limits and throttling of each GPU through NVML, as they are now."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from optcli import environment

T = TypeVar("T")


def conditions() -> dict[str, Any]:
    """The state of the machine now; of its GPUs as NVML tells, else as `nvidia-smi` does."""
    state = environment.conditions()
    gpus = told_by_nvml(look)
    return state if gpus is None else {**state, "gpus": gpus}


def told_by_nvml(ask: Callable[[Any], T]) -> T | None:
    """What `ask` finds out of the module `pynvml`; None where there is no GPU, driver or `pynvml`."""
    if not environment.has_gpu():
        return None
    try:
        import pynvml

        pynvml.nvmlInit()
        return ask(pynvml)
    except Exception:  # NVMLError is made at run time, and any of them means: nobody can tell
        return None


def look(nvml: Any) -> list[dict[str, str]]:
    """What each GPU says, under the names that `nvidia-smi` has for it; `nvml` is `pynvml`.

    What a GPU does not tell is left out.
    """
    count = nvml.nvmlDeviceGetCount()
    return [_look(nvml, nvml.nvmlDeviceGetHandleByIndex(index)) for index in range(count)]


def _look(nvml: Any, gpu: Any) -> dict[str, str]:
    sm, memory = nvml.NVML_CLOCK_SM, nvml.NVML_CLOCK_MEM
    readers: dict[str, Callable[[], str]] = {
        "name": lambda: _text(nvml.nvmlDeviceGetName(gpu)),
        "driver_version": lambda: _text(nvml.nvmlSystemGetDriverVersion()),
        "clocks.sm": lambda: f"{nvml.nvmlDeviceGetClockInfo(gpu, sm)} MHz",
        "clocks.mem": lambda: f"{nvml.nvmlDeviceGetClockInfo(gpu, memory)} MHz",
        "clocks.max.sm": lambda: f"{nvml.nvmlDeviceGetMaxClockInfo(gpu, sm)} MHz",
        "power.limit": lambda: f"{nvml.nvmlDeviceGetPowerManagementLimit(gpu) / 1000:.2f} W",
        "temperature.gpu": lambda: str(nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)),
        "clocks_throttle_reasons.active": lambda: (
            f"0x{nvml.nvmlDeviceGetCurrentClocksThrottleReasons(gpu):016x}"
        ),
    }
    readings = {}
    for name, ask in readers.items():
        with suppress(Exception):
            readings[name] = ask()
    return readings


def _text(text: str | bytes) -> str:
    return text.decode(errors="replace") if isinstance(text, bytes) else text
