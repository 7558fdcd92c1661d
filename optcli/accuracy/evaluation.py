"""Running one artifact over the evaluation set, and what that leaves on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli import runners, workers
from optcli.artifact import Artifact
from optcli.observer import Observer
from optcli.settings import AccuracySettings, TensorSpec

if TYPE_CHECKING:
    import numpy as np

ABOUT = "evaluation.json"
SAMPLES = "samples.npz"


@dataclass(frozen=True)
class StoredOutput:
    """One output of the model: `file` holds its rows `[stored, ...]`; None: it has none by sample."""

    name: str
    file: str | None
    constant: bool


@dataclass(frozen=True)
class Evaluation:
    """What one artifact made of the evaluation set.

    `value` is the metric as a fraction; it and `metric` are None without labels or without
    `accuracy:` in the recipe. Outputs are kept for the first `stored` samples.
    """

    folder: Path
    samples: int
    stored: int
    metric: str | None
    value: float | None
    finite: bool
    outputs: tuple[StoredOutput, ...]
    effective: dict[str, Any]

    @staticmethod
    def load(folder: Path) -> Evaluation:
        """What `evaluate` left in a folder. Raises OSError, ValueError or KeyError if damaged."""
        about = json.loads((folder / ABOUT).read_bytes())
        outputs = tuple(StoredOutput(**each) for each in about["outputs"])
        return Evaluation(**{**about, "folder": folder, "outputs": outputs})

    def ids(self) -> np.ndarray:
        """The samples' ids, in order."""
        return self._samples("ids")

    def correct(self) -> np.ndarray:
        """Whether each sample was right, `[samples]` of bool. Raises KeyError without a metric."""
        return self._samples("correct")

    def rows(self, output: StoredOutput) -> np.ndarray:
        """The stored rows of an output, mapped from disk."""
        import numpy as np

        assert output.file is not None
        found: np.ndarray = np.load(self.folder / output.file, mmap_mode="r", allow_pickle=False)
        return found

    def _samples(self, name: str) -> np.ndarray:
        import numpy as np

        with np.load(self.folder / SAMPLES, allow_pickle=False) as archive:
            found: np.ndarray = archive[name]
        return found


def evaluate(
    artifact: Artifact,
    runner: str,
    options: Mapping[str, Any],
    inputs: Sequence[TensorSpec],
    data: Mapping[str, Any],
    folder: Path,
    settings: AccuracySettings | None,
    out: Path,
    observer: Observer,
    *,
    step: str = "accuracy",
    log: Path | None = None,
    timeout_s: float | None = None,
) -> Evaluation:
    """Run an artifact in its runner over the evaluation set, in a fresh process; writes into `out`.

    `data` is the record of a `DataSettings`, its paths relative to `folder`. Raises `InputError` for
    data or labels that do not fit, `RunnerError` or `StepError` where the artifact fails.
    """
    payload = {
        "artifact": artifact.to_record(),
        "runner": runner,
        "options": dict(options),
        "inputs": [spec.model_dump(mode="json") for spec in inputs],
        "data": dict(data),
        "folder": str(folder),
        "settings": settings.model_dump(mode="json") if settings else None,
        "out": str(out),
    }

    def on_event(event: dict[str, Any]) -> None:
        done, of = event["done"], event["of"]
        observer.progress(step, done / of, f"{done} of {of} samples")

    out.mkdir(parents=True, exist_ok=True)
    workers.run(
        "optcli.accuracy.process:evaluate",
        payload,
        log=log,
        environment=runners.find(runner).model_validate(dict(options)).environment(),
        timeout_s=timeout_s,
        on_event=on_event,
    )
    return Evaluation.load(out)
