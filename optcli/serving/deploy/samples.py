"""Prepared samples for a load test, and what the variant's own runner gives for each of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from optcli.runners import Runner
from optcli.sample import collate
from optcli.serving.bundle import EXPECTED, SAMPLES
from optcli.settings import TensorSpec, batch_range, size_bytes

if TYPE_CHECKING:
    import numpy as np

    from optcli.data.samples import PreparedSet

MOST = 64
_MOST_BYTES = 64 * 1024**2


def write(
    out: Path, dataset: PreparedSet, runner: Runner, inputs: tuple[TensorSpec, ...], most: int
) -> int:
    """Write samples, drawn evenly, with their outputs, one sample a row. Gives how many: 0 for none.

    None are written where a sample is no single row of each input and output, or sizes differ.
    """
    import numpy as np

    if batch_range(inputs).min > 1 or any(
        spec.shape[0] not in (spec.batch_symbol, 1) for spec in inputs
    ):
        return 0
    count = min(most, MOST, len(dataset), max(1, _MOST_BYTES // max(1, size_bytes(inputs, 1))))
    feeds: list[dict[str, np.ndarray]] = []
    results: list[dict[str, np.ndarray]] = []
    for index in range(count):
        sample = dataset.prepared(dataset.read(index * len(dataset) // count))
        feeds.append(dict(collate([sample]).inputs))
        results.append(runner.run(feeds[-1]))
    for rows in (feeds, results):
        for name in rows[0]:
            shapes = {row[name].shape for row in rows}
            if len(shapes) > 1 or shapes.pop()[:1] != (1,):
                return 0
    for file, rows in ((SAMPLES, feeds), (EXPECTED, results)):
        arrays = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
        np.savez(out / file, **arrays)  # type: ignore[arg-type]
    return count
