"""NNCF's accuracy control as the engine of a repair: what is asked of it, what becomes of its steps."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from optcli.accuracy import scoring as scoring_room
from optcli.accuracy.messages import Progress, ScoringRequest
from optcli.artifact import Artifact, Format
from optcli.data import DataSettings
from optcli.errors import StepError, UsageError
from optcli.observer import Silent
from optcli.results import Accuracy, Estimate
from optcli.results.repair import Trial
from optcli.settings import TensorSpec
from optcli.settings.accuracy import AccuracySettings
from optcli.tuning import control as room
from optcli.tuning import control_process

FIRST = Trial(number=0, label="as it is", options={}, value=0.2, operators=9, seconds=1.0)


class Carried:
    """Stands for `Trying`: an ONNX variant, and trials that are inside or not."""

    variant, runner_name, threads = "int8", "onnxruntime", 1
    folder, observer = Path(), Silent()
    settings = SimpleNamespace(timeout_s=5.0)

    def __init__(self, format: Format = Format.ONNX, inside: bool = True, **settings: Any) -> None:
        self.format, self.inside = format, inside
        self.options = {"ignored_names": ["before"]}
        data = SimpleNamespace(model_dump=lambda **_: {"source": "npz:a.npz"})
        self.recipe = SimpleNamespace(
            inputs=(),
            data={"calibration": data, "evaluation": data},
            folder=Path(),
            seed=0,
            postprocess=None,
            accuracy=AccuracySettings.model_validate({"max_drop": 0.05, **settings}),
        )

    def floats(self) -> tuple[Artifact, Any]:
        planned = SimpleNamespace(runner_options=lambda threads: {"threads": threads})
        return Artifact("", self.format, Path(), "fp32", 0, "", {}), planned

    def attempt(self, number: int, label: str, changed: dict[str, Any], first: Trial) -> Trial:
        assert first is FIRST
        return Trial(
            number=number, label=label, options=changed, inside=self.inside, value=0.88, seconds=2.0
        )


def judged(**more: Any) -> Accuracy:
    given = {"metric": "top1", "value": 0.2, "baseline": 0.9, "better": "higher", "bounds": None}
    return Accuracy.model_construct(**{**given, **more})


def step(names: tuple[str, ...], value: float) -> control_process.News:
    made = control_process.Step(names, value, operators=9 - len(names), seconds=1.5)
    return control_process.News(step=made)


@pytest.fixture
def nncf(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What the process was asked for; it sends `events` and gives `answer`."""
    seen = SimpleNamespace(
        request=None,
        events=[
            step((), 0.2),
            control_process.News(progress=Progress(5, 10)),
            step(("a",), 0.5),
            step(("a", "b"), 0.87),
        ],
        answer=control_process.Choice(("a", "b"), "it is inside"),
    )

    def run(function: str, request: Any, gives: Any, *, listener: Any, **_: Any) -> Any:
        assert function == "optcli.tuning.control_process:control"
        seen.request = request
        for event in seen.events:
            assert isinstance(event, listener.kind)
            listener.hear(event)
        if isinstance(seen.answer, Exception):
            raise seen.answer
        assert isinstance(seen.answer, gives)
        return seen.answer

    monkeypatch.setattr(room.workers, "run", run)
    return seen


def controlled(trying: Carried, of: Accuracy | None = None) -> tuple[list[Trial], str]:
    return room.controlled(trying, FIRST, of or judged(), 7, float("inf"))  # type: ignore[arg-type]


def test_steps_are_trials_and_the_choice_is_built_anew(nncf: SimpleNamespace) -> None:
    done, why = controlled(Carried())
    assert [each.number for each in done] == [0, 1, 2]
    one, chosen = done[1:]
    assert (one.value, one.inside, one.float_operators) == (0.5, False, 1)
    assert one.drop is not None
    assert one.drop.value == pytest.approx(0.4)
    assert one.options == {"ignored_names": ["before", "a"]}
    assert chosen.options == {"ignored_names": ["before", "a", "b"]}, "those of the recipe remain"
    assert chosen.inside
    assert "87.00 % as NNCF measured it" in chosen.label
    assert why == "it is inside"
    assert nncf.request.trials == 7


def test_a_choice_that_is_outside_once_built_is_no_repair(nncf: SimpleNamespace) -> None:
    done, why = controlled(Carried(inside=False))
    assert not done[-1].inside
    assert "outside the bar once the recipe's own pass has built it" in why


def test_without_a_choice_its_steps_remain(nncf: SimpleNamespace) -> None:
    nncf.answer = control_process.Choice((), "the time is used up")
    done, why = controlled(Carried())
    assert [each.value for each in done] == [0.2, 0.5, 0.87]
    assert why == "the time is used up"


def test_what_it_fails_of_ends_the_trials(nncf: SimpleNamespace) -> None:
    nncf.answer = StepError("NNCF's accuracy control failed: out of luck")
    done, why = controlled(Carried())
    assert len(done) == 3
    assert "out of luck" in why


def test_what_must_be_reached(nncf: SimpleNamespace) -> None:
    controlled(Carried())
    assert nncf.request.required == pytest.approx(0.85), "0.9 less 5 points"
    controlled(Carried(), judged(better="lower", baseline=0.1))
    assert nncf.request.required == pytest.approx(-0.15), "less is better: its sign is turned"
    bounds = Estimate(value=0.7, low=0.68, high=0.72)
    controlled(Carried(policy="non-inferiority"), judged(bounds=bounds))
    assert nncf.request.required == pytest.approx(0.87), "the bound must be inside, not the loss"


def test_other_passes_and_formats_are_refused() -> None:
    with pytest.raises(UsageError, match="quantized by quantize_onnxruntime") as error:
        room.require_control("quantize_onnxruntime")
    assert "--engine layers" in error.value.hint
    room.require_control("quantize_nncf")
    with pytest.raises(UsageError, match=r"works on ONNX and OpenVINO models, .* torch here"):
        controlled(Carried(format=Format.TORCH))


def asked(place: Path, required: float = 0.0, seconds: float = 1.0) -> control_process.ControlRequest:
    """What the process is asked for, of a model and data that are not there."""
    data = DataSettings(source="npz:data.npz")
    return control_process.ControlRequest(
        source=Artifact("", Format.ONNX, place, "fp32", 0, "", {}),
        options={},
        required=required,
        trials=3,
        seconds=seconds,
        runner="r",
        runner_options={},
        scoring=ScoringRequest(inputs=(), feeds=(), data=data, folder=place),
        calibration=data,
        threads=1,
        seed=0,
    )


class _Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_the_time_ends_it_between_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = _Clock()
    monkeypatch.setattr(control_process, "time", clock)
    monkeypatch.setattr(control_process, "Scoring", lambda _: range(4))
    sent: list[Any] = []
    channel: Any = SimpleNamespace(send=sent.append)
    judging = control_process._Judging(asked(Path()), channel, Path(), 10.0)
    clock.now = 9.0
    judging._heard(1, 4)
    assert sent == [control_process.News(progress=Progress(1, 4))]
    clock.now = 11.0
    with pytest.raises(control_process._TimeIsUpError):
        judging._heard(2, 4)


class _Half:
    """A model that knows the class of the first half of the samples."""

    def run(self, feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        number = feed["x"][:, 0].astype(int)
        scores = np.zeros((len(number), 3), np.float32)
        scores[np.arange(len(number)), np.where(number < 5, number % 3, (number + 1) % 3)] = 1.0
        return {"scores": scores}


def test_an_open_model_is_scored_as_an_evaluation_does(tmp_path: Path) -> None:
    x = np.arange(10, dtype=np.float32)[:, None]
    np.savez(tmp_path / "data.npz", x=x, target=np.arange(10) % 3)
    inputs = (TensorSpec(name="x", shape=("batch", 1)),)
    request = ScoringRequest(
        inputs=inputs,
        feeds=inputs,
        data=DataSettings(source="npz:data.npz"),
        folder=tmp_path,
        settings=AccuracySettings(metric="top1", batch_size=4),
    )
    scoring = scoring_room.Scoring(request)
    heard: list[int] = []
    whole = scoring.score(_Half(), range(len(scoring)), heard.append)  # type: ignore[arg-type]
    assert whole.value == 0.5
    assert whole.each.tolist() == [1.0] * 5 + [0.0] * 5
    assert heard == [4, 8, 10]
    some = scoring.score(_Half(), [9, 0, 7])  # type: ignore[arg-type]
    assert (some.value, some.each.tolist()) == (pytest.approx(1 / 3), [0.0, 1.0, 0.0])
    with pytest.raises(UsageError, match="no metric"):
        scoring_room.Scoring(replace(request, settings=None))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("required", "seconds", "floats", "why"),
    [
        (0.8, 10.0, ("b",), "NNCF's accuracy control is inside the bar"),
        (0.95, 10.0, (), "has no further operators to leave in float"),
        (1.5, 10.0, (), "outside the bar before it is quantized"),
        (0.8, -1.0, (), "the time is used up"),
    ],
)
def test_why_nncf_s_accuracy_control_ended(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    required: float,
    seconds: float,
    floats: tuple[str, ...],
    why: str,
) -> None:
    """A quantizer that reverts `b`, judged by a scoring that knows each model's value."""
    values = {"float": 1.0, "quantized": 0.3, "less": 0.9}
    operators = {"float": {}, "quantized": {"a": "Conv", "b": "Conv"}, "less": {"a": "Conv"}}

    class Model(str):
        graph = None

    class Known:
        sign = 1

        def __len__(self) -> int:
            return 4

        def score(self, model: str, positions: Any, seen: Any) -> scoring_room.Score:
            seen(len(positions))
            return scoring_room.Score(values[model], np.zeros(len(positions)))

    class Runner:
        @staticmethod
        def model_validate(_: Any) -> Any:
            return Runner()

        @contextmanager
        def open(self, *_: Any) -> Iterator[str]:
            yield saved[-1]

    saved: list[str] = []
    sent: list[Any] = []
    ready = SimpleNamespace(
        model=Model("float"),
        feeds=[],
        arguments={"advanced_parameters": SimpleNamespace(backend_params={})},
    )
    quantizer = SimpleNamespace(
        model_validate=lambda _: SimpleNamespace(ready=lambda *_: ready),
        quantized_operators=lambda model: operators[model],
    )

    def controlled(_: Any, judging: Any, allowed: float, trials: int) -> None:
        assert allowed == pytest.approx(1.0 - required)
        for name in values:
            judging.validate(Model(name), range(4))
        judging.validate(Model("quantized"), [0])

    monkeypatch.setattr(control_process, "QuantizeNncf", quantizer)
    monkeypatch.setattr(control_process, "Scoring", lambda _: Known())
    monkeypatch.setattr(control_process, "_job", lambda *_: None)
    monkeypatch.setattr(control_process, "_controlled", controlled)
    monkeypatch.setattr(control_process.runners, "find", lambda _: Runner)
    monkeypatch.setattr(control_process.onnx_format, "save", lambda model, _: saved.append(model))
    request = asked(tmp_path, required=required, seconds=seconds)
    choice = control_process.control(request, SimpleNamespace(send=sent.append))  # type: ignore[arg-type]
    assert choice.floats == floats
    assert why in choice.why
    steps = [each.step.floats for each in sent if each.step is not None]
    assert steps == ([(), ("b",)] if required < 1 and seconds > 0 else [])
