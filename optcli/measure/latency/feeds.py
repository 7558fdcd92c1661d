"""The inputs of timed calls: batches made beforehand from real samples, or random ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from optcli.settings import TensorSpec, batch_range, image_size, size_bytes

if TYPE_CHECKING:
    import numpy as np

    Feed = dict[str, np.ndarray]

DISTINCT = 16
_MOST_BYTES = 256 * 1024**2


def choose_batch_sizes(
    inputs: Sequence[TensorSpec], wanted: Sequence[int]
) -> tuple[tuple[int, ...], dict[int, str]]:
    """The batch sizes to measure, ascending, and why others of `wanted` are left out.

    Where the model takes none of them, its usual size is measured instead.
    """
    allowed = batch_range(inputs)
    fits = {size for size in wanted if allowed.min <= size <= allowed.max}
    takes = f"{allowed.min}" if allowed.min == allowed.max else f"{allowed.min} to {allowed.max}"
    skipped = dict.fromkeys(sorted(set(wanted) - fits), f"the model takes {takes}")
    return tuple(sorted(fits or {allowed.opt})), skipped


def make(
    inputs: Sequence[TensorSpec], samples: Path | None, batch_sizes: Sequence[int], seed: int
) -> dict[int, list[Feed]]:
    """Up to 16 distinct batches per batch size, from an .npz of samples `[n, ...]` by input name.

    Inputs that the file lacks have their value, or are random within their type. Fewer than 16 where
    they would take more than 256 MiB.
    """
    import numpy as np

    rng = np.random.default_rng(seed)
    arrays = dict(np.load(samples, allow_pickle=False)) if samples is not None else {}
    image = image_size(inputs)
    feeds: dict[int, list[Feed]] = {}
    for size in batch_sizes:
        count = max(1, min(DISTINCT, _MOST_BYTES // max(1, size_bytes(inputs, size))))
        feeds[size] = [
            {
                spec.name: _tensor(spec, arrays, size, turn, rng)
                if spec.name in arrays or spec.value is None
                else spec.filled(size, image)
                for spec in inputs
            }
            for turn in range(count)
        ]
    return feeds


def _tensor(
    spec: TensorSpec, arrays: Mapping[str, np.ndarray], size: int, turn: int, rng: np.random.Generator
) -> np.ndarray:
    import numpy as np

    shape = spec.concrete(size)
    if spec.name not in arrays:
        return _random(spec, shape, rng)
    stored = arrays[spec.name]
    if spec.whole:
        whole: np.ndarray = stored[turn % len(stored)]
        return whole
    rows = [(turn * shape[0] + row) % len(stored) for row in range(shape[0])]
    return np.ascontiguousarray(stored[rows], dtype=spec.dtype)


def _random(spec: TensorSpec, shape: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """Floats in [0, 1), bytes 0..255, other integers 0 or 1: an index of any table."""
    if spec.dtype.startswith("float"):
        return rng.random(shape, dtype="float32").astype(spec.dtype)
    return rng.integers(0, 256 if spec.dtype == "uint8" else 2, shape).astype(spec.dtype)
