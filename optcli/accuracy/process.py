"""What an evaluating process does: the whole evaluation set through one artifact, batch by batch."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli import data, runners
from optcli.accuracy.evaluation import ABOUT, SAMPLES, StoredOutput
from optcli.accuracy.metrics import require_metric
from optcli.artifact import Artifact
from optcli.data import DataSettings
from optcli.errors import InputError, RunnerError, did_you_mean
from optcli.sample import Batch, SampleSet, collate, cycled
from optcli.settings import AccuracySettings, TensorSpec, batch_range
from optcli.workers import Channel

if TYPE_CHECKING:
    import numpy as np

    Outputs = Mapping[str, np.ndarray]

_KEPT_BYTES = 256 * 1024**2
_NEWS_EVERY_S = 0.5


def evaluate(payload: dict[str, Any], channel: Channel) -> None:
    """Write what `Evaluation.load` reads. `payload`: see `optcli.accuracy.evaluate`."""
    inputs = tuple(TensorSpec.model_validate(spec) for spec in payload["inputs"])
    settings = AccuracySettings.model_validate(payload["settings"]) if payload["settings"] else None
    samples = data.open(DataSettings.model_validate(payload["data"]), Path(payload["folder"]), inputs)
    if not len(samples):
        raise InputError(
            "the evaluation set is empty", place="data.evaluation", hint="look at its split and samples"
        )
    runner = runners.find(payload["runner"]).model_validate(payload["options"])
    kept = _Kept(Path(payload["out"]), len(samples), settings)
    news = 0.0
    with runner.open(Artifact.from_record(payload["artifact"]), inputs) as model:
        for batch, rows in _batches(samples, inputs, settings or AccuracySettings()):
            kept.add(batch, rows, model.run(dict(batch.inputs)))
            if time.monotonic() - news > _NEWS_EVERY_S:
                news = time.monotonic()
                channel.send({"done": kept.count, "of": len(samples)})
        kept.write(model.effective())


def _batches(
    samples: SampleSet, inputs: Sequence[TensorSpec], settings: AccuracySettings
) -> Iterator[tuple[Batch, int]]:
    """Batches of a size the model takes, and how many rows of each count.

    Samples are repeated to fill the last batch up where it would be smaller than the model takes.
    """
    allowed = batch_range(inputs)
    size = max(allowed.min, min(settings.batch_size, allowed.max))
    for start in range(0, len(samples), size):
        rows = min(size, len(samples) - start)
        if rows < allowed.min:
            yield cycled(samples, allowed.min, start), rows
        else:
            yield collate([samples[start + row] for row in range(rows)]), rows


class _Kept:
    """What is kept of the outputs: right or wrong per sample, and the first samples' values on disk."""

    def __init__(self, out: Path, total: int, settings: AccuracySettings | None) -> None:
        self._out, self._total, self._settings = out, total, settings
        self._ids: list[str] = []
        self._correct: list[np.ndarray] = []
        self._outputs: dict[str, _Output] = {}
        self._finite = True
        self._stored = 0

    @property
    def count(self) -> int:
        return len(self._ids)

    def add(self, batch: Batch, rows: int, outputs: Outputs) -> None:
        import numpy as np

        if not outputs:
            raise RunnerError("the model gave no output")
        if not self._outputs:
            self._begin(batch, outputs)
        for name, array in outputs.items():
            self._finite &= bool(np.isfinite(array).all()) if array.dtype.kind == "f" else True
            self._outputs[name].add(array, len(batch.ids), rows, self.count)
        self._judge(batch, rows, outputs)
        self._ids.extend(batch.ids[:rows])

    def write(self, effective: dict[str, Any]) -> None:
        """Write the files; the one that is read first comes last."""
        import numpy as np

        arrays = {"ids": np.array(self._ids)}
        value = None
        if self._correct:
            arrays["correct"] = np.concatenate(self._correct)
            value = float(arrays["correct"].mean())
        np.savez_compressed(self._out / SAMPLES, **arrays)  # type: ignore[arg-type]
        about = {
            "samples": self.count,
            "stored": self._stored,
            "metric": self._settings.metric if self._settings and self._correct else None,
            "value": value,
            "finite": self._finite,
            "outputs": [asdict(output.summary(name)) for name, output in self._outputs.items()],
            "effective": effective,
        }
        (self._out / ABOUT).write_text(json.dumps(about, indent=1))

    def _begin(self, batch: Batch, outputs: Outputs) -> None:
        """Decide from the first batch how many samples' outputs fit into 256 MiB."""
        rows = len(batch.ids)
        by_sample = {n: a for n, a in outputs.items() if a.ndim and len(a) == rows}
        bytes_each = sum(array.nbytes for array in by_sample.values()) / rows
        self._stored = min(self._total, max(1, int(_KEPT_BYTES / bytes_each))) if by_sample else 0
        for index, (name, array) in enumerate(outputs.items()):
            file = f"output_{index}.npy" if name in by_sample else None
            self._outputs[name] = _Output(self._out, file, array, self._stored)

    def _judge(self, batch: Batch, rows: int, outputs: Outputs) -> None:
        """Right or wrong, where there are a metric and labels."""
        if self._settings is None:
            return
        targets, ids = batch.targets[:rows], batch.ids[:rows]
        without = [name for name, target in zip(ids, targets, strict=True) if target is None]
        if without:
            some = self._correct or len(without) < rows
            raise InputError(
                "some samples of the evaluation set have a label and some have none"
                if some
                else f"{self._settings.metric} needs labels, and the evaluation set has none",
                place=without[0] if some else "data.evaluation",
                hint="label all of them, or choose those with labels by split"
                if some
                else "label the samples, or remove `accuracy:`: then outputs alone are compared",
            )
        metric = require_metric(self._settings.metric)
        scores = outputs[self._scored(outputs)]
        self._correct.append(metric(scores[:rows], targets, ids))

    def _scored(self, outputs: Outputs) -> str:
        assert self._settings is not None
        name = self._settings.output
        if name is None:
            return next(iter(outputs))
        if name not in outputs:
            hint = did_you_mean(name, list(outputs))
            raise InputError(f"the model has no output {name!r}", place="accuracy.output", hint=hint)
        return name


class _Output:
    """One output over the whole set: whether it ever changes, and its first rows on disk."""

    def __init__(self, out: Path, file: str | None, first: np.ndarray, stored: int) -> None:
        from numpy.lib.format import open_memmap

        self._file, self._first, self._seen, self._constant = file, first[:1].copy(), 0, True
        self._rows: np.ndarray | None = None
        if file is not None:
            shape = (stored, *first.shape[1:])
            self._rows = open_memmap(out / file, mode="w+", dtype=first.dtype, shape=shape)

    def add(self, array: np.ndarray, batch_rows: int, rows: int, start: int) -> None:
        import numpy as np

        if self._rows is None or len(array) != batch_rows or array.shape[1:] != self._rows.shape[1:]:
            self._file, self._rows, self._constant = None, None, False
            return
        array = array[:rows]
        self._seen += rows
        self._constant = self._constant and np.array_equal(
            array, np.broadcast_to(self._first, array.shape), equal_nan=array.dtype.kind == "f"
        )
        stop = min(start + rows, len(self._rows))
        if start < stop:
            self._rows[start:stop] = array[: stop - start]

    def summary(self, name: str) -> StoredOutput:
        if self._rows is not None:
            self._rows.flush()  # type: ignore[attr-defined]
        return StoredOutput(name, self._file, self._constant and self._seen > 1)
