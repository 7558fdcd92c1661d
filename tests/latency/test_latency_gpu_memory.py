"""GPU memory through NVML: of the process where it is told, else of the device; never a failure."""

import os
import sys
import threading
from types import SimpleNamespace

import pytest

from optcli import environment
from optcli.measure.latency.machine_state import GpuMemory

MB = 1024**2


class Nvml(SimpleNamespace):
    """Two devices; `mine` is what this process is said to hold on each, `used` what each holds."""

    def __init__(self, mine, used=(100 * MB, 50 * MB)):
        super().__init__(mine=list(mine), used=list(used), looks=threading.Event())

    def nvmlInit(self):
        pass

    def nvmlDeviceGetCount(self):
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetMemoryInfo(self, device):
        return SimpleNamespace(used=self.used[device])

    def nvmlDeviceGetComputeRunningProcesses(self, device):
        self.looks.set()
        other = SimpleNamespace(pid=1, usedGpuMemory=999 * MB)  # never one of ours
        held = self.mine[device]
        if held is None:
            return [other]
        return [other, SimpleNamespace(pid=os.getpid(), usedGpuMemory=held)]


def test_the_most_of_this_process_on_all_devices():
    nvml = Nvml(mine=(10 * MB, 0))
    found = GpuMemory(nvml)
    for mine in ((10 * MB, 5 * MB), (70 * MB, 1 * MB), (1 * MB, 1 * MB)):
        nvml.mine = list(mine)
        found.look()
    assert found.peak_bytes == 71 * MB


def test_where_processes_are_not_told_apart_the_devices_growth_counts():
    nvml = Nvml(mine=(None, None))
    found = GpuMemory(nvml)
    nvml.used[1] += 30 * MB
    found.look()
    assert found.peak_bytes == 30 * MB


def test_it_looks_while_the_block_runs_and_once_after():
    nvml = Nvml(mine=(10 * MB, 0))
    found = GpuMemory(nvml)
    with found.looking():
        assert nvml.looks.wait(10)
        nvml.mine = [20 * MB, 0]
    assert found.peak_bytes == 20 * MB


def test_a_lost_device_costs_nothing():
    nvml = Nvml(mine=(10 * MB, 0))
    found = GpuMemory(nvml)
    found.look()

    def lost(device):
        raise RuntimeError("GPU is lost")

    nvml.nvmlDeviceGetComputeRunningProcesses = lost
    found.look()
    assert found.peak_bytes == 10 * MB


@pytest.mark.parametrize("gpu", [False, True])
def test_without_a_gpu_or_its_library_there_is_none(monkeypatch, gpu):
    monkeypatch.setattr(environment, "has_gpu", lambda: gpu)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert GpuMemory.here() is None
