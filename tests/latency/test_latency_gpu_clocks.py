"""Clocks and throttling of GPUs: under nvidia-smi's names, and never a failure."""

from __future__ import annotations

import sys
from types import SimpleNamespace

from optcli import environment
from optcli.measure.latency import machine_state


def nvml(**more):
    def fails(*_):
        raise RuntimeError("Not Supported")

    found = {
        "NVML_CLOCK_SM": 1,
        "NVML_CLOCK_MEM": 2,
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetName": lambda gpu: b"NVIDIA H200",
        "nvmlSystemGetDriverVersion": lambda: "580.65.06",
        "nvmlDeviceGetClockInfo": lambda gpu, kind: {1: 1980, 2: 3201}[kind],
        "nvmlDeviceGetMaxClockInfo": lambda gpu, kind: 1980,
        "nvmlDeviceGetPowerManagementLimit": lambda gpu: 700000,
        "nvmlDeviceGetTemperature": fails,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda gpu: 4,
    }
    return SimpleNamespace(**{**found, **more})


def test_what_a_gpu_says_and_what_it_does_not():
    assert machine_state.look(nvml()) == [
        {
            "name": "NVIDIA H200",
            "driver_version": "580.65.06",
            "clocks.sm": "1980 MHz",
            "clocks.mem": "3201 MHz",
            "clocks.max.sm": "1980 MHz",
            "power.limit": "700.00 W",
            "clocks_throttle_reasons.active": "0x0000000000000004",
        }
    ]


def test_it_takes_the_place_of_nvidia_smi_where_it_can(monkeypatch):
    monkeypatch.setattr(environment, "has_gpu", lambda: True)
    monkeypatch.setattr(
        environment, "_asked_of_nvidia_smi", lambda fields: [{"name": "as nvidia-smi says"}]
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    assert machine_state.conditions()["gpus"][0]["clocks.sm"] == "1980 MHz"

    def fails():
        raise RuntimeError("Driver Not Loaded")

    monkeypatch.setitem(sys.modules, "pynvml", nvml(nvmlInit=fails))
    assert machine_state.conditions()["gpus"] == [{"name": "as nvidia-smi says"}]
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert machine_state.conditions()["gpus"] == [{"name": "as nvidia-smi says"}]


def test_without_a_gpu_nobody_is_asked(monkeypatch):
    monkeypatch.setattr(environment, "has_gpu", lambda: False)
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    assert machine_state.ask_nvml(machine_state.look) is None
    assert machine_state.conditions()["gpus"] == []
