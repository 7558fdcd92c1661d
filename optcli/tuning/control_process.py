"""NNCF's accuracy control in a process of its own: quantize, then leave more and more in floats.

`nncf.quantize_with_accuracy_control` ranks groups of quantizers by the metric without them and takes
them out one after the other until the loss is small enough; a step that makes it worse twice in a row
is undone (https://docs.openvino.ai, quantizing with accuracy control). The metric is the recipe's own,
in the variant's own runner.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optcli import data, folders, runners
from optcli.accuracy.messages import Progress, ScoringRequest
from optcli.accuracy.scoring import Score, Scoring
from optcli.artifact import Artifact, Format
from optcli.data import DataSettings
from optcli.errors import OptcliError, StepError, first_line
from optcli.formats import onnx as onnx_format
from optcli.formats import openvino as openvino_format
from optcli.observer import Silent
from optcli.passes import Job
from optcli.passes.quantize_nncf import QuantizeNncf, Ready
from optcli.workers import Channel

# Groups are ranked on at most so many samples, and on half of the set at most.
_RANKING = 100
_NEWS_EVERY_S = 1.0
_ROUNDING = 1e-9


class _TimeIsUpError(Exception):
    """The budget is used up; what was found so far has been sent."""


@dataclass(frozen=True)
class ControlRequest:
    """What NNCF may try: `options` of quantize_nncf for the float artifact `source`.

    `required` is the metric to reach, its sign turned where less is better.
    """

    source: Artifact
    options: dict[str, Any]
    required: float
    trials: int
    seconds: float
    runner: str
    runner_options: dict[str, Any]
    scoring: ScoringRequest
    calibration: DataSettings
    threads: int
    seed: int


@dataclass(frozen=True)
class Choice:
    """The names of operators to leave in floats, none where there is no such choice; why it ended."""

    floats: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Step:
    """A model judged on the whole set: its operators in floats, its metric, its quantized operators."""

    floats: tuple[str, ...]
    value: float
    operators: int
    seconds: float


@dataclass(frozen=True)
class News:
    """What it says on the way: one of both."""

    step: Step | None = None
    progress: Progress | None = None


def control(request: ControlRequest, channel: Channel) -> Choice:
    """Run NNCF's accuracy control; sends a `Step` for every model judged on the whole set."""
    began = time.monotonic()
    with folders.temporary("control") as folder:
        ready = QuantizeNncf.model_validate(request.options).ready(
            request.source, _job(request, Path(folder))
        )
        if ready.arguments["advanced_parameters"].backend_params:
            raise StepError(
                "NNCF's accuracy control reads no model of more than 2 GB",
                hint="--engine layers",
            )
        judging = _Judging(request, channel, Path(folder), began + request.seconds)
        with judging.compiled_models():
            try:
                judging.float_score = judging.judge(ready.model, range(len(judging.scoring)))
                allowed = judging.float_score.value - request.required
                if allowed < 0:
                    return Choice((), "the model is outside the bar before it is quantized")
                _controlled(ready, judging, allowed, request.trials)
            except _TimeIsUpError:
                return Choice((), judging.used_up())
    if judging.steps and judging.value + _ROUNDING >= request.required:
        return Choice(judging.floats, "NNCF's accuracy control is inside the bar")
    why = "NNCF's accuracy control has no further operators to leave in float"
    if len(judging.steps) > request.trials:
        why = f"all {request.trials} trials are used up"
    return Choice((), why)


def _job(request: ControlRequest, out: Path) -> Job:
    scoring = request.scoring
    return Job(
        out=out,
        inputs=scoring.inputs,
        origin=request.source,
        observer=Silent(),
        calibration=data.open(request.calibration, scoring.folder, scoring.inputs),
        threads=request.threads,
        seed=request.seed,
    )


def _controlled(ready: Ready, judging: _Judging, allowed: float, trials: int) -> None:
    import nncf

    arguments = {**ready.arguments}
    advanced = arguments.pop("advanced_parameters")
    count = len(judging.scoring)
    try:
        nncf.quantize_with_accuracy_control(
            ready.model,
            nncf.Dataset(ready.feeds),
            nncf.Dataset(list(range(count))),
            judging.validate,
            max_drop=allowed + _ROUNDING,
            drop_type=nncf.DropType.ABSOLUTE,
            advanced_quantization_parameters=advanced,
            advanced_accuracy_restorer_parameters=nncf.AdvancedAccuracyRestorerParameters(
                max_num_iterations=trials,
                ranking_subset_size=max(1, min(_RANKING, count // 2)),
                num_ranking_workers=1,
            ),
            **arguments,
        )
    except (OptcliError, _TimeIsUpError):
        raise
    except Exception as error:
        raise StepError(
            f"NNCF's accuracy control failed: {first_line(error)}", hint="--engine layers"
        ) from error


@dataclass
class _Judging:
    """Judges the models that NNCF makes, and tells the parent of each.

    `floats` are the operators of the quantized model that compute in floats in the last one.
    """

    request: ControlRequest
    channel: Channel
    folder: Path
    until: float
    float_score: Score | None = None
    value: float = float("-inf")
    steps: list[int] = field(default_factory=list)
    ranked: int = 0
    floats: tuple[str, ...] = ()
    _all: dict[str, str] = field(default_factory=dict)
    _compiled: Any = None
    _news: float = 0.0

    def __post_init__(self) -> None:
        self.scoring = Scoring(self.request.scoring)

    def validate(self, model: Any, samples: Iterable[int]) -> tuple[float, list[float]]:
        """NNCF's validation function: the metric over samples, and of each."""
        positions = list(samples)
        model = model if hasattr(model, "graph") else self._compiled
        quantized = QuantizeNncf.quantized_operators(model)
        if not quantized and self.float_score is not None:
            each = self.float_score.each[positions]
            return self.float_score.value, [float(value) for value in each]
        began = time.monotonic()
        score = self.judge(model, positions)
        self.ranked += len(positions) < len(self.scoring)
        if len(positions) == len(self.scoring):
            self._all = self._all or quantized
            self.floats = tuple(x for x in self._all if x not in quantized and not x.startswith("#"))
            self.value = score.value
            self.steps.append(len(self.floats))
            value, spent_s = self.scoring.sign * score.value, time.monotonic() - began
            self.channel.send(News(step=Step(self.floats, value, len(quantized), spent_s)))
        return score.value, [float(value) for value in score.each]

    def judge(self, model: Any, positions: Sequence[int]) -> Score:
        """Open a model in the variant's runner and score it."""
        request, source = self.request, self.request.source
        if source.format == Format.ONNX:
            onnx_format.save(model, self.folder)
        else:
            openvino_format.save(model, self.folder)
        artifact = Artifact("", source.format, self.folder, "int8", 0, "", source.facts)
        runner = runners.find(request.runner).model_validate(request.runner_options)
        with runner.open(artifact, request.scoring.inputs) as opened:
            return self.scoring.score(opened, positions, lambda done: self._heard(done, len(positions)))

    def used_up(self) -> str:
        """Why it ends where the time does."""
        if len(self.steps) > 1:
            return f"the time is used up, after {len(self.steps) - 1} steps"
        return f"the time is used up: NNCF had tried {self.ranked} groups of operators, to rank them"

    def _heard(self, done: int, of: int) -> None:
        now = time.monotonic()
        if now > self.until:
            raise _TimeIsUpError
        if now - self._news > _NEWS_EVERY_S:
            self._news = now
            self.channel.send(News(progress=Progress(done, of)))

    @contextmanager
    def compiled_models(self) -> Iterator[None]:
        """Remember what NNCF compiles: compiled, as it validates them, models have other operators."""
        openvino_format.forbid_telemetry()
        import openvino

        compiling = openvino.compile_model

        def remembering(model: Any, *arguments: Any, **more: Any) -> Any:
            self._compiled = model
            return compiling(model, *arguments, **more)

        openvino.compile_model = remembering
        try:
            yield
        finally:
            openvino.compile_model = compiling
