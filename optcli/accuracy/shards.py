"""What is kept of one part of the evaluation set: records, and the first outputs on disk."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli.accuracy.metrics import Predictions
from optcli.accuracy.metrics._classes import best, rows_of_scores
from optcli.errors import RunnerError
from optcli.results.outcomes import Stability

if TYPE_CHECKING:
    import numpy as np

# Of outputs, for their distance from the baseline's; with a postprocess its results are what counts.
BYTES = 64 * 1024**2
BYTES_BESIDE_DETECTIONS = 16 * 1024**2
ABOUT = "part.json"
RECORDS = "records.npz"
FIRSTS = "firsts.npz"


class SpanCollector:
    """Collects the samples of one span of the set; what it keeps grows by some bytes a sample.

    Of the outputs the first samples of the whole set are kept, as many as fit into `kept_bytes`.
    """

    def __init__(self, out: Path, span: range, total: int, output: str | None, kept_bytes: int) -> None:
        self._out, self._span, self._total = out, span, total
        self._output, self._bytes = output, kept_bytes
        self._ids: list[str] = []
        self._records: list[dict[str, np.ndarray]] = []
        self._outputs: dict[str, _Output] = {}
        self._finite = True
        self._stored = 0
        out.mkdir(parents=True, exist_ok=True)

    @property
    def count(self) -> int:
        """How many samples it has."""
        return len(self._ids)

    def begin(
        self, batch_rows: int, outputs: Mapping[str, np.ndarray], whole: Collection[str] = ()
    ) -> None:
        """Decide from the first batch how many samples' outputs are kept.

        `whole` are outputs that have no dimension for the batch.
        """
        if not outputs:
            raise RunnerError("the model gave no output")
        by_sample = {
            name: array
            for name, array in outputs.items()
            if array.ndim and len(array) == batch_rows and name not in whole
        }
        bytes_each = sum(array.nbytes for array in by_sample.values()) / batch_rows
        if by_sample:
            self._stored = min(self._total, max(1, int(self._bytes / max(1, bytes_each))))
        rows = max(0, min(self._span.stop, self._stored) - self._span.start)
        for index, (name, array) in enumerate(outputs.items()):
            file = f"output_{index}.npy" if name in by_sample else None
            self._outputs[name] = _Output(self._out, file, array, rows)

    def add(self, seen: Predictions, records: dict[str, np.ndarray], contents: np.ndarray) -> None:
        """Take the samples of one batch, in order; `contents` are digests of their inputs."""
        import numpy as np

        infinite = np.zeros(len(seen.ids), np.uint64)
        for name, array in seen.outputs.items():
            if array.dtype.kind == "f":
                infinities = np.isinf(array)
                self._finite &= not (np.isnan(array).any() or (array.size and infinities.all()))
                infinite += _infinities(array, len(infinite))
            self._outputs[name].add(array, len(seen.ids), self.count)
        columns = {**self._predicted(seen), **moved(records, self.count), "content": contents}
        columns["infinite"] = infinite
        self._records.append(columns)
        self._ids.extend(seen.ids)

    def write(
        self, effective: dict[str, Any], stability: Stability | None, noted: Mapping[str, int]
    ) -> None:
        """Write the part's files; `noted` counts images by what decoding noted of them."""
        import numpy as np

        joined = joined_records(self._records)
        joined["ids"] = np.array(self._ids, dtype=str)
        np.savez(self._out / RECORDS, **joined)  # type: ignore[arg-type]
        firsts = {f"output_{i}": output.first for i, output in enumerate(self._outputs.values())}
        np.savez(self._out / FIRSTS, **firsts)  # type: ignore[arg-type]
        about = {
            "samples": self.count,
            "stored": self._stored,
            "finite": self._finite,
            "outputs": [output.summary(name) for name, output in self._outputs.items()],
            "effective": effective,
            "stability": stability.model_dump() if stability else None,
            "noted": dict(noted),
        }
        (self._out / ABOUT).write_text(json.dumps(about))

    def _predicted(self, seen: Predictions) -> dict[str, np.ndarray]:
        """The class of the largest score, where the output is scores: for agreement."""
        name = self._output or next(iter(seen.outputs), "")
        if name not in seen.outputs or name in seen.whole:
            return {}
        array = seen.outputs[name]
        rows = rows_of_scores(array) if array.ndim and len(array) == len(seen.ids) else None
        if rows is None or rows.shape[1] < 2 or rows.dtype.kind != "f":
            return {}
        return {"predicted": best(rows.astype("float64"))[0]}


def _infinities(array: np.ndarray, count: int) -> np.ndarray:
    """For each of so many samples a number that says where an output of it is infinite; 0: nowhere.

    Of an output without a dimension for samples, the same for each.
    """
    import numpy as np

    numbers = np.zeros(count, np.uint64)
    signs = np.where(np.isinf(array), np.sign(array), 0).astype(np.int8)
    each = (
        signs if array.ndim and len(array) == count else np.broadcast_to(signs, (count, *signs.shape))
    )
    for index in np.flatnonzero(each.reshape(count, -1).any(axis=1)):
        digest = hashlib.blake2b(each[index].tobytes(), digest_size=8).digest()
        numbers[index] = int.from_bytes(digest, "little")
    return numbers


def noted(out: Path, jobs: int) -> Counter[str]:
    """How many images of all parts below `out` have each note of the decoding."""
    counts: Counter[str] = Counter()
    for job in range(jobs):
        counts.update(json.loads((out / f"part-{job}" / ABOUT).read_bytes())["noted"])
    return counts


def effective(out: Path, job: int) -> dict[str, Any]:
    """What a part below `out` says of who computed it."""
    read: dict[str, Any] = json.loads((out / f"part-{job}" / ABOUT).read_bytes())["effective"]
    return read


def moved(records: dict[str, np.ndarray], by: int) -> dict[str, np.ndarray]:
    """Records whose sample numbers are raised by `by`, the number of samples before them."""
    return {name: a + by if name.endswith("_sample") else a for name, a in records.items()}


def joined_records(parts: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Records one after the other; those that not every part has are left out."""
    import numpy as np

    names = [name for name in parts[0] if all(name in part for part in parts)] if parts else []
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


class _Output:
    """One output over a span: whether it ever changes, and its first rows on disk."""

    def __init__(self, out: Path, file: str | None, first: np.ndarray, rows: int) -> None:
        from numpy.lib.format import open_memmap

        self.first, self._file, self._seen, self._constant = first[:1].copy(), file, 0, True
        self._out = out
        self._shape, self._by_sample = first.shape[1:], file is not None
        self._rows: np.ndarray | None = None
        if file is not None and rows:
            shape = (rows, *self._shape)
            self._rows = open_memmap(out / file, mode="w+", dtype=first.dtype, shape=shape)

    def add(self, array: np.ndarray, rows: int, start: int) -> None:
        import numpy as np

        if self._file is None or len(array) != rows or array.shape[1:] != self._shape:
            self._file, self._rows, self._constant, self._by_sample = None, None, False, False
            return
        self._seen += rows
        self._constant = self._constant and np.array_equal(
            array, np.broadcast_to(self.first, array.shape), equal_nan=array.dtype.kind == "f"
        )
        if self._rows is not None and start < len(self._rows):
            stop = min(start + rows, len(self._rows))
            self._rows[start:stop] = array[: stop - start]

    def summary(self, name: str) -> dict[str, Any]:
        import numpy as np

        if self._rows is not None and self._seen < len(self._rows):  # not all samples were to count
            np.save(self._out / str(self._file), self._rows[: self._seen].copy())
        elif self._rows is not None:
            self._rows.flush()  # type: ignore[attr-defined]
        return {
            "name": name,
            "file": self._file,
            "constant": self._constant,
            "dtype": str(self.first.dtype),
            "shape": list(self._shape) if self._by_sample else None,
            "seen": self._seen,
        }
