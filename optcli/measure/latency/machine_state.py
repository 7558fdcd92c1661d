"""What the machine does to a measuring process: memory, other work, clocks of its GPUs."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from optcli import environment
from optcli.environment import steal_s, throttled_s
from optcli.workers.memory import field_bytes

_STATUS = Path("/proc/self/status")


def mark_bytes() -> int:
    """The resident memory now; the high-water mark begins anew where the system lets it."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return field_bytes(_STATUS, "VmRSS") or high_water_bytes()


def high_water_bytes() -> int:
    """The most resident memory this process has held.

    Not `ru_maxrss` on Linux: it survives `exec`, so that a small child of a large parent would be
    charged with its parent's memory.
    """
    held = field_bytes(_STATUS, "VmHWM")
    if held is not None:
        return held
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


_TASKS = Path("/proc/self/task")


@dataclass(frozen=True)
class Disturbance:
    """Involuntary context switches, seconds stolen by the hypervisor, nanoseconds of waiting.

    `throttled_ns` is what a CPU quota kept from all processes that share it. Some kernels count it as
    waiting too.
    """

    switches: int
    steal_s: float
    waited_ns: int
    throttled_ns: int


class Noise:
    """What disturbed this process or this machine since the object was made."""

    def __init__(self) -> None:
        self._switches, self._steal_s = _involuntary_switches(), steal_s() or 0.0
        self._waited_ns, self._throttled_s = waited_ns(), throttled_s()

    def since(self) -> Disturbance:
        """What it was until now."""
        return Disturbance(
            switches=_involuntary_switches() - self._switches,
            steal_s=(steal_s() or 0.0) - self._steal_s,
            waited_ns=max(0, waited_ns() - self._waited_ns),
            throttled_ns=round(1e9 * (throttled_s() - self._throttled_s)),
        )


def waited_ns() -> int:
    """How long threads of this process were ready to run while others had the processors.

    The sum over its threads, from the scheduler's own clock; 0 where the system does not tell.
    """
    if not sys.platform.startswith("linux"):
        return 0
    total = 0
    for task in _TASKS.iterdir():
        with suppress(OSError, ValueError, IndexError):  # a thread may end, a kernel may not say
            total += int((task / "schedstat").read_text().split()[1])
    return total


def _involuntary_switches() -> int:
    """How often another task took the processor from one of this process's threads."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


T = TypeVar("T")

# How often GPU memory is looked at.
_EVERY_S = 0.02


def conditions() -> dict[str, Any]:
    """The state of the machine now; of its GPUs as NVML tells, else as `nvidia-smi` does."""
    state = environment.conditions()
    gpus = ask_nvml(look)
    return state if gpus is None else {**state, "gpus": gpus}


def ask_nvml(ask: Callable[[Any], T]) -> T | None:
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


class GpuMemory:
    """The most that this process held on all GPUs together while somebody was looking, by NVML.

    PyTorch's own counters miss what TensorRT, ONNX Runtime and cuDNN allocate. Of the process where the
    driver tells, else what the devices hold more than at the start: in a container processes are often
    not told apart. `nvml` is the module `pynvml`.
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
        return ask_nvml(GpuMemory)

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
