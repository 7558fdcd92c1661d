"""NNCF's accuracy control in a process of its own: quantize, then leave more and more in floats.

`nncf.quantize_with_accuracy_control` ranks groups of quantizers by the metric without them and takes
them out one after the other until the loss is small enough; a step that makes it worse twice in a row
is undone (https://docs.openvino.ai, quantizing with accuracy control). The metric is the recipe's own,
in the variant's own runner.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optcli import data, runners
from optcli.accuracy.scoring import Score, Scoring
from optcli.artifact import Artifact, Format
from optcli.data import DataSettings
from optcli.errors import OptcliError, StepError, first_line
from optcli.formats import onnx as onnx_format
from optcli.formats import openvino as openvino_format
from optcli.observer import Silent
from optcli.passes import Job
from optcli.passes.quantize_nncf import QuantizeNncf, Ready
from optcli.settings import TensorSpec
from optcli.workers import Channel

# Groups are ranked on at most so many samples, and on half of the set at most.
_RANKING = 100
_NEWS_EVERY_S = 1.0
_ROUNDING = 1e-9


class _TimeIsUpError(Exception):
    """The budget is used up; what was found so far has been sent."""


def control(payload: dict[str, Any], channel: Channel) -> dict[str, Any]:
    """Run NNCF's accuracy control; sends `{"step": ...}` for every model judged on the whole set.

    `payload`: `source` (the float artifact), `options` of quantize_nncf, `calibration` (data settings),
    what `Scoring` reads, `runner` and `runner_options`, `required` (the metric to reach, its sign
    turned where less is better), `trials`, `seconds`, `threads`, `seed`. Gives `floats`, the names of
    operators to leave in floats, None where there is no such choice, and `why` it ended.
    """
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="optcli-control-") as folder:
        source = Artifact.from_record(payload["source"])
        ready = QuantizeNncf.model_validate(payload["options"]).ready(source, _job(payload, folder))
        if ready.arguments["advanced_parameters"].backend_params:
            raise StepError(
                "NNCF's accuracy control reads no model of more than 2 GB",
                hint="--engine layers",
            )
        judging = _Judging(payload, channel, Path(folder), began + payload["seconds"], source)
        with judging.compiled_models():
            try:
                judging.float_score = judging.judge(ready.model, range(len(judging.scoring)))
                allowed = judging.float_score.value - payload["required"]
                if allowed < 0:
                    why = "the model is outside the bar before it is quantized"
                    return {"floats": None, "why": why}
                _controlled(ready, judging, allowed, payload["trials"])
            except _TimeIsUpError:
                return {"floats": None, "why": judging.used_up()}
    if judging.steps and judging.value + _ROUNDING >= payload["required"]:
        return {"floats": judging.floats, "why": "NNCF's accuracy control is inside the bar"}
    why = "NNCF's accuracy control has no further operators to leave in float"
    if len(judging.steps) > payload["trials"]:
        why = f"all {payload['trials']} trials are used up"
    return {"floats": None, "why": why}


def _job(payload: dict[str, Any], folder: str) -> Job:
    inputs = tuple(TensorSpec.model_validate(spec) for spec in payload["inputs"])
    settings = DataSettings.model_validate(payload["calibration"])
    source = Artifact.from_record(payload["source"])
    return Job(
        out=Path(folder),
        inputs=inputs,
        origin=source,
        observer=Silent(),
        calibration=data.open(settings, Path(payload["folder"]), inputs),
        threads=payload["threads"],
        seed=payload["seed"],
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

    payload: dict[str, Any]
    channel: Channel
    folder: Path
    until: float
    source: Artifact
    float_score: Score | None = None
    value: float = float("-inf")
    steps: list[int] = field(default_factory=list)
    ranked: int = 0
    floats: list[str] = field(default_factory=list)
    _all: dict[str, str] = field(default_factory=dict)
    _compiled: Any = None
    _news: float = 0.0

    def __post_init__(self) -> None:
        self.scoring = Scoring(self.payload)

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
            self.floats = [x for x in self._all if x not in quantized and not x.startswith("#")]
            self.value = score.value
            self.steps.append(len(self.floats))
            self.channel.send(
                {
                    "step": self.floats,
                    "value": self.scoring.sign * score.value,
                    "operators": len(quantized),
                    "seconds": time.monotonic() - began,
                }
            )
        return score.value, [float(value) for value in score.each]

    def judge(self, model: Any, positions: Sequence[int]) -> Score:
        """Open a model in the variant's runner and score it."""
        if self.source.format == Format.ONNX:
            onnx_format.save(model, self.folder)
        else:
            openvino_format.save(model, self.folder)
        artifact = Artifact("", self.source.format, self.folder, "int8", 0, "", self.source.facts)
        inputs = tuple(TensorSpec.model_validate(spec) for spec in self.payload["inputs"])
        runner = runners.find(self.payload["runner"]).model_validate(self.payload["runner_options"])
        with runner.open(artifact, inputs) as opened:
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
            self.channel.send({"done": done, "of": of})

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
