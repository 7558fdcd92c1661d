"""How much GPU memory this process has held: looked at through NVML, since no runtime tells for all.

PyTorch's own counters miss what TensorRT, ONNX Runtime and cuDNN allocate.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from optcli.latency.gpu_clocks import told_by_nvml

_EVERY_S = 0.02


class GpuMemory:
    """The most that this process held on all GPUs together while somebody was looking.

    Of the process where the driver tells, else what the devices hold more than at the start: in a
    container processes are often not told apart. `nvml` is the module `pynvml`.
    """

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        count = nvml.nvmlDeviceGetCount()
        self._devices = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        self._before = self._held_by_all()
        self.peak_bytes = 0

    @staticmethod
    def here() -> GpuMemory | None:
        """None where there is no GPU, no driver or no `pynvml`."""
        return told_by_nvml(GpuMemory)

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look every 20 ms while the block runs. Not while calls are timed: it would disturb them."""
        done = threading.Event()

        def look() -> None:
            while not done.wait(_EVERY_S):
                self.look()

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
            self.look()

    def look(self) -> None:
        """Note what is held now."""
        with suppress(Exception):  # a device that is reset or lost
            held = self._held_by_process()
            if held is None:
                held = self._held_by_all() - self._before
            self.peak_bytes = max(self.peak_bytes, held)

    def _held_by_process(self) -> int | None:
        sizes = [
            process.usedGpuMemory
            for device in self._devices
            for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(device)
            if process.pid == os.getpid()
        ]
        return sum(sizes) if sizes and None not in sizes else None

    def _held_by_all(self) -> int:
        return sum(int(self._nvml.nvmlDeviceGetMemoryInfo(device).used) for device in self._devices)
