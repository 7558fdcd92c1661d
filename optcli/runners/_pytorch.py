"""What the runners that are PyTorch's share: where they compute, and copies to and from there."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, PrivateAttr

from optcli.artifact import Artifact
from optcli.environment import Needs
from optcli.errors import RunnerError, first_line
from optcli.models.formats import torch_devices
from optcli.models.formats.torch_devices import CPU, CUDA
from optcli.runners import Runner
from optcli.workers import memory

if TYPE_CHECKING:
    import numpy as np
    import torch


class TorchCudaCalls:
    """The three steps of a call on one GPU, `device` being `cuda:N`.

    >>> image = calls.send("image", array)
    >>> result = calls.compute(lambda: network(image))
    >>> arrays = calls.receive({"logits": result})
    """

    def __init__(self, device: str) -> None:
        import torch

        self.device = device
        self._stream = torch.cuda.Stream(device=device)
        self._start = torch.cuda.Event(enable_timing=True)
        self._stop = torch.cuda.Event(enable_timing=True)
        self._arrays = _Buffers(None)
        self._inputs = _Buffers(device)
        self._outputs = _Buffers(None)
        self._in_flight: set[str] = set()
        self._timed = False

    def send(self, name: str, array: np.ndarray) -> torch.Tensor:
        """Start to copy an array to the GPU; gives the tensor that will hold it.

        The array may be changed as soon as this returns. Equal shapes have equal addresses.
        """
        source = tensor_of(array)
        pinned = self._arrays.like(name, source)
        if name in self._in_flight:  # sent again before anything was computed: `pinned` may be read
            self._stream.synchronize()
        pinned.copy_(source)
        target = self._inputs.like(name, source)
        with self.stream():
            _copy(target, pinned)
        self._in_flight.add(name)
        return target

    def compute(self, call: Callable[[], Any]) -> Any:
        """What `call` gives, once it is there."""
        with self.stream():
            self._start.record(self._stream)
            result = call()
            self._stop.record(self._stream)
        self._stop.synchronize()
        self._in_flight.clear()
        self._timed = True
        return result

    def receive(self, tensors: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
        """Copy results back; bfloat16, which NumPy does not know, becomes float32."""
        import torch

        pinned = {}
        with self.stream():
            for name, tensor in tensors.items():
                source = tensor.detach()
                source = source.float() if source.dtype == torch.bfloat16 else source
                source = source.contiguous()
                pinned[name] = self._outputs.like(name, source)
                _copy(pinned[name], source)
        self._stream.synchronize()
        return {name: tensor.numpy().copy() for name, tensor in pinned.items()}

    def stream(self) -> Any:
        """A context in which PyTorch works on this stream."""
        import torch

        return torch.cuda.stream(self._stream)

    def forget(self) -> None:
        """Let no call have been timed: those that only compiled are none."""
        self._timed = False

    def device_ms(self) -> float | None:
        """Milliseconds between the events around the last computation; None before the first."""
        return float(self._start.elapsed_time(self._stop)) if self._timed else None


class _Buffers:
    """Memory by name that grows and is used again: pinned where `device` is None."""

    def __init__(self, device: str | None) -> None:
        self._device = device
        self._flat: dict[tuple[str, torch.dtype], torch.Tensor] = {}

    def like(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """A contiguous tensor of that shape and type."""
        count, key = tensor.numel(), (name, tensor.dtype)
        flat = self._flat.get(key)
        if flat is None or flat.numel() < count:
            flat = self._flat[key] = _empty(count, tensor.dtype, self._device)
        return flat[:count].view(tensor.shape)


AUTO = "auto"


class PytorchRunner(Runner):
    """A runtime of PyTorch, on the CPU or on one GPU."""

    needs: ClassVar[Needs] = Needs(("torch",))

    device: str = Field(
        AUTO,
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        examples=["auto", "cpu", "cuda", "cuda:1"],
        description="`cpu`, `cuda` or `cuda:N`; `auto`: what the artifact was compiled for, "
        "else the CPU",
    )
    tf32: bool = Field(
        False,
        description="on a GPU: let the factors of FP32 products and convolutions be rounded to TF32, "
        "which PyTorch by itself does in convolutions",
    )

    _device: str = PrivateAttr(CPU)
    _keeps_memory: bool = PrivateAttr(False)
    _cuda: TorchCudaCalls | None = PrivateAttr(None)
    _names: tuple[str, ...] = PrivateAttr(())
    _model: Callable[..., Any] | None = PrivateAttr(None)
    # Arguments by position and by name; the AOTInductor runner has its own.
    _bound: Any = PrivateAttr(((), {}))
    _result: Any = PrivateAttr(None)

    def requires(self) -> Needs:
        return Needs(self.needs.packages, gpu=True) if self.device.startswith(CUDA) else self.needs

    def execute(self) -> None:
        import torch

        if self._model is None:
            raise RunnerError("the runner holds no model", hint="open it first")
        try:
            with torch.no_grad():
                self._result = self._computed(self._compute)
        except RunnerError:
            raise
        except Exception as error:
            raise RunnerError(f"PyTorch failed: {type(error).__name__}: {first_line(error)}") from error

    def close(self) -> None:
        self._model = None
        self._result = None
        self._cuda = None
        self._bound = ((), {})

    def device_ms(self) -> float | None:
        return None if self._cuda is None else self._cuda.device_ms()

    def _compute(self) -> Any:
        assert self._model is not None
        positional, keyword = self._bound
        return self._model(*positional, **keyword)

    def _choose_device(self, artifact: Artifact) -> None:
        """Set threads and device, with FP32 on a GPU as exact as it was asked for: see `chosen`.

        On the CPU the process keeps the memory of activations from call to call.
        """
        import torch

        torch.set_num_threads(self.thread_count())
        with suppress(RuntimeError):  # can be set once in a process, before any work
            torch.set_num_interop_threads(1)
        self._device = chosen(self.device, artifact)
        if self._device == CPU:
            self._keeps_memory = memory.keep_freed()
        else:
            torch_devices.exact(self.tf32)
            self._cuda = TorchCudaCalls(self._device)

    def _precision_of(self, precision: str) -> str:
        """The precision of products: `tf32` of an FP32 network that may round so."""
        rounded = self.tf32 and precision == "fp32" and self._device != CPU
        return "tf32" if rounded else precision

    def _sent(self, name: str, array: np.ndarray) -> torch.Tensor:
        """An input where the network computes; on the CPU it shares memory with the array."""
        return tensor_of(array) if self._cuda is None else self._cuda.send(name, array)

    def _computed(self, compute: Callable[[], Any]) -> Any:
        """What `compute` gives, once it is there."""
        return compute() if self._cuda is None else self._cuda.compute(compute)

    def _received(
        self, outputs: Mapping[str, torch.Tensor], *, copy: bool = True
    ) -> dict[str, np.ndarray]:
        """The outputs as arrays; bfloat16, which NumPy does not know, becomes float32."""
        if self._cuda is not None:
            return self._cuda.receive(dict(outputs))
        import torch

        arrays: dict[str, np.ndarray] = {}
        for name, value in outputs.items():
            dtype = torch.float32 if value.dtype == torch.bfloat16 else value.dtype
            arrays[name] = value.detach().to(CPU, dtype, copy=copy).contiguous().numpy()
        return arrays

    def _named(self, outputs: Mapping[str, torch.Tensor], what: str) -> dict[str, torch.Tensor]:
        """The outputs under the names that the artifact gives them, in their order."""
        if len(self._names) != len(outputs):
            raise RunnerError(
                f"the {what} gives {len(outputs)} outputs, the artifact names {len(self._names)}"
            )
        return dict(zip(self._names, outputs.values(), strict=True))

    def _where(self) -> dict[str, Any]:
        """For `effective`: device, threads, memory and version."""
        import torch

        return {
            "provider": self._device,
            **torch_devices.described(self._device),
            "threads": torch.get_num_threads(),
            "keeps_freed_memory": self._keeps_memory,
            "version": torch.__version__,
        }


def chosen(device: str, artifact: Artifact) -> str:
    """`cpu` or `cuda:N`, which is there.

    Raises `MissingError` where it is not, `RunnerError` where the artifact was compiled for another.
    """
    made_for = artifact.facts.get(torch_devices.FACT)
    wanted = (made_for or CPU) if device == AUTO else device
    if made_for is not None and wanted.partition(":")[0] != made_for:
        raise RunnerError(
            f"it was compiled for {made_for}, and the runner is to run it on {wanted}",
            hint=f"set the pass's and the runner's `device` alike, or leave the runner's {AUTO}",
        )
    return torch_devices.require(wanted)


def _empty(count: int, dtype: torch.dtype, device: str | None) -> torch.Tensor:
    import torch

    if device is None:
        return torch.empty(count, dtype=dtype, pin_memory=True)
    return torch.empty(count, dtype=dtype, device=device)


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Start a copy on the current stream."""
    target.copy_(source, non_blocking=True)


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """A tensor that shares memory with an array, a read-only one too: networks do not write there."""
    import torch

    if array.flags.writeable:
        return torch.from_numpy(array)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable.*")
        return torch.from_numpy(array)
