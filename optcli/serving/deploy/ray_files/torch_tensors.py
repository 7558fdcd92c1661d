"""What models in PyTorch on the CPU share: a process that is set up, and arrays as tensors and back."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch

# Of mallopt(3).
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4


def prepare_process(count: int) -> None:
    """Compute with so many threads in this process, and keep its memory from call to call.

    As it comes, glibc may give large blocks back to the system at each call, which then clears all
    pages anew: that can take as long as what is computed on them.
    """
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_MMAP_MAX, 0)
        mallopt(_TRIM_THRESHOLD, -1)
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
