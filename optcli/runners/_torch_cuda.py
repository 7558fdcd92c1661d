"""A call on a GPU through PyTorch: pinned copies in, compute between two events, pinned copies out.

All of it happens on one stream of its own, in order, so that the events enclose the computing alone and
the host waits twice: for the result, and for what is copied back.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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
