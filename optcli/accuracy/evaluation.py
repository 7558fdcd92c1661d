"""Running one artifact over the evaluation set: what is asked for, and what that leaves on disk."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Lock
from types import NoneType
from typing import TYPE_CHECKING, Any, Protocol

from optcli import runners, workers
from optcli.artifact import Artifact
from optcli.data import DataSettings
from optcli.observer import Observer, left, rate
from optcli.results.outcomes import DecodingNote, Stability
from optcli.settings import TensorSpec
from optcli.settings.accuracy import AccuracySettings
from optcli.settings.postprocess import PostprocessSettings

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class AnswersFile:
    """A file of answers that another machine gave; `partial`: samples without an answer do not count.

    `outputs` are the baseline's by name, each with the shape of one sample; none where they do not
    matter.
    """

    path: Path
    partial: bool = False
    outputs: tuple[tuple[str, tuple[int, ...] | None], ...] = ()


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest:
    """An artifact, its runner and the part `job` of `jobs` of the set; see `optcli.accuracy.evaluate`.

    It is judged on `data`, whose paths are relative to `folder`, as `settings` and `postprocess` say.
    `feeds` are the model's own inputs in the order of `inputs`, where names or element types differ.
    `reference`: others are compared with it, so that outputs which can be no scores and no classes are
    an error of the recipe, and not of the model. `guessed`: nobody says that `postprocess` is right.
    `out` is the folder of what it leaves. `prepared` is a folder with the samples as they were prepared
    before; without it they may be left in `keep`, for others. With `answers` these are evaluated, and
    the artifact is not opened. `answered`: only the samples count that this file answers.
    """

    inputs: tuple[TensorSpec, ...]
    feeds: tuple[TensorSpec, ...]
    data: DataSettings
    folder: Path
    settings: AccuracySettings | None = None
    postprocess: PostprocessSettings | None = None
    reference: bool = False
    guessed: bool = False
    artifact: Artifact
    runner: str
    options: dict[str, Any]
    out: Path
    job: int = 0
    jobs: int = 1
    prepared: Path | None = None
    keep: Path | None = None
    answers: AnswersFile | None = None
    answered: Path | None = None


@dataclass(frozen=True)
class EvaluationProgress:
    """How many samples of how many have gone through the model."""

    done: int
    of: int


ABOUT = "evaluation.json"
SAMPLES = "samples.npz"
_ETA_AFTER_S = 3.0


@dataclass(frozen=True)
class StoredOutput:
    """One output of the model: `file` holds its rows `[stored, ...]`; None: it has none by sample.

    `shape` is that of one sample; None where it differs or has none by sample.
    """

    name: str
    file: str | None
    constant: bool
    dtype: str = "float32"
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Evaluation:
    """What one artifact made of the evaluation set.

    `value` is the metric as a fraction; it and `metric` are None without labels or without `accuracy:`
    in the recipe. Outputs are kept for the first `stored` samples. `class_order` says why the labels
    seem to be in another order than the model's classes, `doubts` why it is nothing to compare with,
    `remarks` what the preparation does otherwise than the decoding expects. `largest_change`: see
    `Metric.largest_change`. `metadata` is what the artifact's file says of the model. `guessed`: nobody
    says that the outputs are decoded rightly.
    """

    folder: Path
    samples: int
    stored: int
    metric: str | None
    value: float | None
    finite: bool
    outputs: tuple[StoredOutput, ...]
    effective: dict[str, Any]
    runner: str = ""
    better: str = "higher"
    figures: dict[str, float] = field(default_factory=dict)
    stability: Stability | None = None
    class_order: str | None = None
    doubts: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    decoding: tuple[DecodingNote, ...] = ()
    largest_change: float | None = None
    full_range: bool | None = None
    metadata: dict[str, str] = field(default_factory=dict)
    guessed: bool = False

    @staticmethod
    def load(folder: Path) -> Evaluation:
        """What `evaluate` left in a folder. Raises OSError, ValueError or KeyError if damaged."""
        about = json.loads((folder / ABOUT).read_bytes())
        outputs = tuple(
            StoredOutput(**{**each, "shape": None if each["shape"] is None else tuple(each["shape"])})
            for each in about["outputs"]
        )
        stability = about["stability"] and Stability.model_validate(about["stability"])
        parsed: dict[str, Any] = {"folder": folder, "outputs": outputs, "stability": stability}
        texts = {name: tuple(about.get(name, ())) for name in ("doubts", "remarks")}
        parsed["decoding"] = tuple(map(DecodingNote.model_validate, about.get("decoding", ())))
        return Evaluation(**{**about, **parsed, **texts})

    def ids(self) -> np.ndarray:
        """The samples' ids, in order."""
        ids = self.array("ids")
        assert ids is not None
        return ids

    def array(self, name: str) -> np.ndarray | None:
        """What was kept of every sample, or None.

        `correct` (bool, metrics that are the share of right samples), `resampled` (the metric of the
        bootstrap's resamples, for others) and `left_out` (of the jackknife's), `label` and `predicted`
        (class numbers); `cluster` numbers the contents. Not of every sample: `class_label`,
        `class_samples` and `class_value`, of every class; `detections.NAMES`, of every detection.
        """
        import numpy as np

        with np.load(self.folder / SAMPLES, allow_pickle=False) as archive:
            return archive[name] if name in archive.files else None

    def rows(self, output: StoredOutput) -> np.ndarray:
        """The stored rows of an output, mapped from disk."""
        import numpy as np

        assert output.file is not None
        rows: np.ndarray = np.load(self.folder / output.file, mmap_mode="r", allow_pickle=False)
        return rows


class UnderWay:
    """Evaluating processes that run now, for whoever ends them all: an interrupt reaches one thread."""

    def __init__(self) -> None:
        self._children: set[workers.Child] = set()
        self._ended = False

    @contextmanager
    def holding(self, child: workers.Child) -> Iterator[None]:
        """The process is one of them as long as the block runs."""
        self._children.add(child)
        try:
            if self._ended:  # while it was started: `end` has not seen it
                child.kill()
            yield
        finally:
            self._children.discard(child)

    def end(self) -> None:
        """End them, and whatever is started from now on."""
        self._ended = True
        for child in list(self._children):
            child.kill()


class Elsewhere(Protocol):
    """Other machines that evaluate the parts of one set, so many at most at once."""

    parts: int

    def carry_out(self, request: EvaluationRequest) -> bool:
        """Leave the files of the part `job` below `out`, as `evaluate_part` does; False: none can.

        Raises as `evaluate`. Several threads call at once.
        """

    def stop(self) -> None:
        """End what is being evaluated."""


def evaluate(
    request: EvaluationRequest,
    observer: Observer,
    *,
    step: str = "accuracy",
    log: Path | None = None,
    timeout_s: float | None = None,
    interpreter: str | None = None,
    elsewhere: Elsewhere | None = None,
    under_way: UnderWay | None = None,
) -> Evaluation:
    """Run an artifact in its runner over the evaluation set, in fresh processes; writes into `out`.

    With `jobs` the set is split between as many processes, by whole batches, and comes out the same.
    `interpreter` is another Python to run the artifact in, with its own libraries. With `elsewhere` the
    set is split between other machines, and `jobs` does not count; what none of them can do is done
    here, a part after the other. `under_way` holds the processes as long as they run. Raises
    `InputError` for data or labels that do not fit, `RunnerError` or `StepError` where the artifact
    fails.
    """
    if elsewhere is not None:
        request = replace(request, jobs=elsewhere.parts)
    request.out.mkdir(parents=True, exist_ok=True)
    news = _EvaluationMonitor(step, observer)
    here = Lock()
    running = under_way or UnderWay()

    def run(function: str, job: int) -> None:
        listener = workers.Listener(EvaluationProgress, partial(news.heard, job))
        _run(running, function, replace(request, job=job), log, timeout_s, listener, interpreter)

    def part(job: int) -> None:
        if elsewhere is None:
            run("shard", job)
        elif not elsewhere.carry_out(replace(request, job=job)):
            with here:
                run("shard", job)

    if elsewhere is None and request.jobs == 1:
        run("evaluate", 0)
    else:
        with ThreadPoolExecutor(request.jobs) as pool:
            try:
                list(pool.map(part, range(request.jobs)))
            except KeyboardInterrupt:
                running.end()
                if elsewhere is not None:
                    elsewhere.stop()
                raise
        run("finish", 0)
    return Evaluation.load(request.out)


def evaluate_part(
    request: EvaluationRequest, *, log: Path | None = None, timeout_s: float | None = None
) -> None:
    """Evaluate the part `job` of `jobs` of a set in a worker process of this machine.

    Raises as `evaluate`.
    """
    _run(UnderWay(), "shard", request, log, timeout_s)


def _run(
    running: UnderWay,
    function: str,
    request: EvaluationRequest,
    log: Path | None,
    timeout_s: float | None,
    listener: workers.Listener[EvaluationProgress] | None = None,
    interpreter: str | None = None,
) -> None:
    runner = runners.find(request.runner).model_validate(request.options)
    workers.run(
        f"optcli.accuracy.process:{function}",
        request,
        NoneType,
        log=log,
        environment=runner.environment(),
        timeout_s=timeout_s,
        listener=listener,
        interpreter=interpreter or sys.executable,
        confined=(request.out,) if request.artifact.foreign else None,
        holding=running.holding,
    )


class _EvaluationMonitor:
    """Progress of all processes together, with the time that is left."""

    def __init__(self, step: str, observer: Observer, clock: Callable[[], float] | None = None) -> None:
        self._step, self._observer, self._clock = step, observer, clock or time.monotonic
        self._began = self._clock()
        self._done: dict[int, int] = {}
        self._lock = Lock()

    def heard(self, job: int, progress: EvaluationProgress) -> None:
        with self._lock:
            self._done[job] = progress.done
            done, of = sum(self._done.values()), progress.of
            text = f"{done} of {of} samples"
            spent_s = self._clock() - self._began
            if done and spent_s > _ETA_AFTER_S:
                text += f", {rate(done, spent_s)}, {left(spent_s / done * (of - done))}"
            self._observer.progress(self._step, done / of, text)
