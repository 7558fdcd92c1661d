"""What the two runtimes of PyTorch share: threads and memory, and tensors for arrays and back."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import memory
import numpy as np
import torch


def prepare_process(count: int) -> None:
    """Compute with so many threads in this process, and keep its memory from call to call."""
    memory.keep_freed()
    torch.set_num_threads(count)
    with suppress(RuntimeError):  # can be set once in a process, before any work
        torch.set_num_interop_threads(1)


def tensor_of(array: np.ndarray) -> torch.Tensor:
    """A tensor of the same values, which is only read: it may share memory that must not be written."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(np.ascontiguousarray(array))


def arrays_of(outputs: Any, names: Sequence[str]) -> dict[str, np.ndarray]:
    """The tensors of a result as arrays, by the names of the outputs; bfloat16 becomes float32."""
    tensors = list(_tensors(outputs))
    return {name: _array(tensor) for name, tensor in zip(names, tensors, strict=True)}


def _array(tensor: torch.Tensor) -> np.ndarray:
    plain = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    array: np.ndarray = plain.detach().contiguous().numpy()
    return array


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in what a network gives, in order: a tensor, or tuples, lists and dictionaries."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)
